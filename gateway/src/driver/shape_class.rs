//! The classes of requests that may share a batch: those of one model with equal shapes, apart from the batch and padded
//! dimensions.

use std::collections::HashMap;

use packhorse_cluster::{Dim, Program};
use packhorse_protocol::Tensor;
use packhorse_serving::{ModelKey, ShapeClass};

/// The dimensions that the signature leaves open, input by input, and that must be equal. Empty for most models.
type OpenDims = Vec<u64>;

/// The numbers of the shapes of the present requests. It holds no other shapes: a client cannot make it grow.
#[derive(Debug, Default)]
pub(super) struct ShapeClasses {
    classes: HashMap<(ModelKey, OpenDims), CountedClass>,
    next: u64,
}

#[derive(Debug)]
struct CountedClass {
    class: ShapeClass,
    requests: usize,
}

/// A request's membership in its class, which ends with [`ShapeClasses::leave`].
#[derive(Debug)]
pub(super) struct Membership {
    key: (ModelKey, OpenDims),
    pub(super) class: ShapeClass,
}

impl ShapeClasses {
    /// Returns the class of a request, and counts the request in it.
    pub(super) fn enter(
        &mut self,
        model: ModelKey,
        program: &Program,
        inputs: &[Tensor],
    ) -> Membership {
        let key = (model, open_dims(program, inputs));
        let counted = self.classes.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            CountedClass {
                class: ShapeClass(self.next),
                requests: 0,
            }
        });
        counted.requests += 1;
        Membership {
            class: counted.class,
            key,
        }
    }

    /// Removes a request that has ended from its class.
    pub(super) fn leave(&mut self, membership: &Membership) {
        let counted = self
            .classes
            .get_mut(&membership.key)
            .expect("a class exists as long as its members");
        counted.requests -= 1;
        if counted.requests == 0 {
            self.classes.remove(&membership.key);
        }
    }
}

fn open_dims(program: &Program, inputs: &[Tensor]) -> OpenDims {
    if !program.batches() {
        // Such a request never shares a batch, whatever its shape.
        return OpenDims::new();
    }
    let mut open = OpenDims::new();
    for (spec, input) in program.inputs.iter().zip(inputs) {
        let padded = spec.pad.map(|pad| pad.axis);
        for (axis, (dim, size)) in spec.shape.iter().zip(input.shape().dims()).enumerate() {
            if axis > 0 && *dim == Dim::Any && Some(axis) != padded {
                open.push(*size);
            }
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ArtifactDigest, Datatype, Padding, Shape, TensorSpec};

    use super::*;

    fn program(pad: Option<Padding>) -> Program {
        let spec = TensorSpec {
            name: "x".to_owned(),
            datatype: Datatype::Uint8,
            shape: vec![Dim::Any, Dim::Any, Dim::Fixed(2)],
            pad,
        };
        Program {
            model: "m:1".parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: 8,
            inputs: vec![spec.clone()],
            outputs: vec![TensorSpec { pad: None, ..spec }],
        }
    }

    fn input(rows: i64, length: i64) -> Vec<Tensor> {
        let shape = Shape::new(&[rows, length, 2]).unwrap();
        let data = vec![0_u8; shape.elements() as usize];
        vec![Tensor::from_values("x", shape, &data).unwrap()]
    }

    #[test]
    fn rows_and_padded_lengths_do_not_separate_requests_and_other_lengths_do() {
        let mut classes = ShapeClasses::default();
        let model = ModelKey(1);
        let mut class = |pad, input: &[Tensor]| classes.enter(model, &program(pad), input).class;
        let short = class(None, &input(1, 3));
        assert_eq!(class(None, &input(4, 3)), short);
        assert_ne!(class(None, &input(1, 4)), short);
        let padding = Some(Padding {
            axis: 1,
            value: 0.0,
        });
        let padded = class(padding, &input(1, 3));
        assert_eq!(class(padding, &input(2, 4)), padded);
    }

    #[test]
    fn a_class_is_forgotten_with_its_last_request() {
        let mut classes = ShapeClasses::default();
        for length in 1..1000 {
            let membership = classes.enter(ModelKey(1), &program(None), &input(1, length));
            classes.leave(&membership);
        }
        assert!(classes.classes.is_empty());
    }
}
