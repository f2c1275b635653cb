//! The usual shapes of an input.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::Dim;

/// The usual shapes of an input: one, or several with weights. -1 is a dimension without a usual size.
///
/// In JSON one is the list of its sizes, as in `[-1, 128]`; several are a list of objects, as in
/// `[{"shape": [-1, 32], "weight": 9}, {"shape": [-1, 512], "weight": 1}]`.
///
/// ```
/// use packhorse_cluster::TypicalShapes;
///
/// let text = r#"[{"shape": [-1, 32], "weight": 9}, {"shape": [-1, 512], "weight": 1}]"#;
/// let shapes: TypicalShapes = serde_json::from_str(text)?;
/// assert_eq!(shapes.heaviest().len(), 2);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypicalShapes(Vec<WeightedShape>);

/// A usual shape of an input, with the part of the rows that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WeightedShape {
    /// The size of each dimension, -1 for one without a usual size; a list as long as the input's `shape`.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<i64>))]
    pub shape: Vec<Dim>,
    /// The number of rows with this shape, among as many as the sum of all weights; 1 to 1000.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub weight: u32,
}

/// The usual shapes of an input: one, or several with weights.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
#[schema(as = TypicalShapes)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is a description")]
pub(crate) enum TypicalShapesSchema {
    /// The size of each dimension of the only shape, -1 for one without a usual size; a list as long as the input's `shape`.
    One(Vec<i64>),
    /// One to eight shapes with weights.
    Several(Vec<WeightedShape>),
}

impl TypicalShapes {
    /// The largest number of usual shapes of an input. A model is measured with each.
    pub const MAX_SHAPES: usize = 8;
    /// The largest weight of a shape.
    pub const MAX_WEIGHT: u32 = 1000;
    /// The largest row of a usual shape, in bytes: that of a batch.
    pub const MAX_ROW_BYTES: u64 = 1 << 30;

    /// Creates a single shape.
    pub fn one(shape: Vec<Dim>) -> Self {
        Self(vec![WeightedShape { shape, weight: 1 }])
    }

    /// Returns the shapes, as they were given.
    pub fn shapes(&self) -> &[WeightedShape] {
        &self.0
    }

    /// Returns true if there is more than one shape.
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns the weights of the shapes.
    pub fn weights(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|shape| shape.weight)
    }

    /// Returns the index of the shape with the largest weight, the first of equals.
    pub fn heaviest_index(&self) -> usize {
        let largest = self.weights().max();
        let mut weights = self.weights();
        weights
            .position(|weight| Some(weight) == largest)
            .unwrap_or(0)
    }

    /// Returns the shape with the largest weight, the first of equals.
    pub fn heaviest(&self) -> &[Dim] {
        &self.0[self.heaviest_index()].shape
    }
}

impl Serialize for TypicalShapes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.shape.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TypicalShapes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut sizes, mut shapes) = (Vec::new(), Vec::new());
        for element in Vec::<Element>::deserialize(deserializer)? {
            match element {
                Element::Size(size) => sizes.push(size),
                Element::Shape(shape) => shapes.push(shape),
            }
        }
        match (&sizes[..], &shapes[..]) {
            (_, []) => Ok(Self::one(sizes)),
            ([], _) => Ok(Self(shapes)),
            _ => Err(D::Error::custom(
                "expected either the sizes of one shape or shapes with weights",
            )),
        }
    }
}

/// An element of a list of sizes or of shapes.
enum Element {
    Size(Dim),
    Shape(WeightedShape),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, or a shape with its weight")
    }

    fn visit_i64<E: Error>(self, size: i64) -> Result<Element, E> {
        Dim::try_from(size).map(Element::Size).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, size: u64) -> Result<Element, E> {
        let signed = i64::try_from(size).map_err(|_| E::custom("the size is too large"))?;
        self.visit_i64(signed)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
        let shape = WeightedShape::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Element::Shape(shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shape_and_several_are_written_as_they_are_read() {
        for text in [
            "[]",
            "[-1,128]",
            r#"[{"shape":[-1,32],"weight":9},{"shape":[-1,512],"weight":1}]"#,
        ] {
            let shapes: TypicalShapes = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&shapes).unwrap(), text);
        }
        let alone: TypicalShapes =
            serde_json::from_str(r#"[{"shape":[-1,32],"weight":9}]"#).unwrap();
        assert_eq!(alone.heaviest(), [Dim::Any, Dim::Fixed(32)]);
        assert!(!alone.are_several());
    }

    #[test]
    fn other_texts_are_refused_with_their_problem() {
        for (text, problem) in [
            (
                r#"[-1,{"shape":[-1],"weight":1}]"#,
                "expected either the sizes of one shape or shapes with weights",
            ),
            (r#"[{"shape":[-1]}]"#, "missing field `weight`"),
            (r#"["x"]"#, "expected a size, or a shape with its weight"),
            ("[-2]", "-2"),
        ] {
            let error = serde_json::from_str::<TypicalShapes>(text).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
    }

    #[test]
    fn the_first_of_the_largest_weights_is_the_heaviest() {
        let text =
            r#"[{"shape":[1],"weight":2},{"shape":[2],"weight":5},{"shape":[3],"weight":5}]"#;
        let shapes: TypicalShapes = serde_json::from_str(text).unwrap();
        assert_eq!(shapes.heaviest(), [Dim::Fixed(2)]);
    }
}
