//! Colours that most people with a colour vision deficiency can distinguish.

/// A colour by its number; the same number is the same colour in every picture. The first eight are distinct.
///
/// Source: Okabe and Ito, "Color Universal Design", 2008; in another order: yellow, which is hard to see as a line, is last.
/// From the ninth on, the colours repeat paler and with dashed lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub usize);

/// A named colour of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// The name in the legend.
    pub label: String,
    /// The colour.
    pub colour: Colour,
}

impl Series {
    /// Creates series with these names and with colours in their order.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = &'a str>) -> Vec<Self> {
        let series = |(i, label): (usize, &str)| Self {
            label: label.to_owned(),
            colour: Colour(i),
        };
        labels.into_iter().enumerate().map(series).collect()
    }
}

/// A colour as red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rgb(pub(crate) u8, pub(crate) u8, pub(crate) u8);

impl Rgb {
    pub(crate) const WHITE: Self = Self(255, 255, 255);
    pub(crate) const TEXT: Self = Self(34, 34, 34);
    pub(crate) const AXIS: Self = Self(85, 85, 85);
    pub(crate) const GRID: Self = Self(225, 225, 225);
    pub(crate) const LIMIT: Self = Self(170, 0, 0);

    /// Returns a readable colour for text on this one.
    pub(crate) fn contrasting(self) -> Self {
        let light =
            0.299 * f32::from(self.0) + 0.587 * f32::from(self.1) + 0.114 * f32::from(self.2);
        if light > 140.0 {
            Self::TEXT
        } else {
            Self::WHITE
        }
    }
}

const COLOURS: [Rgb; 8] = [
    Rgb(0, 114, 178),
    Rgb(230, 159, 0),
    Rgb(0, 158, 115),
    Rgb(204, 121, 167),
    Rgb(86, 180, 233),
    Rgb(213, 94, 0),
    Rgb(70, 70, 70),
    Rgb(240, 228, 66),
];

impl Colour {
    pub(crate) fn rgb(self) -> Rgb {
        let colour = COLOURS[self.0 % COLOURS.len()];
        if self.is_repeated() {
            let pale = |value: u8| value / 2 + 115;
            Rgb(pale(colour.0), pale(colour.1), pale(colour.2))
        } else {
            colour
        }
    }

    /// Returns true if a smaller number has nearly the same colour.
    pub(crate) fn is_repeated(self) -> bool {
        self.0 >= COLOURS.len()
    }
}
