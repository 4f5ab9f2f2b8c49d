//! A drawing as a list of elements, in user units from the top left corner, and its colours.

/// A colour, red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color(pub [u8; 3]);

/// Behind everything, explicit so that a drawing can be read on a dark page.
pub const PAPER: Color = Color([255, 255, 255]);
/// Text, and lines that matter.
pub const INK: Color = Color([36, 41, 47]);
/// Less important text.
pub const FAINT: Color = Color([101, 109, 118]);
/// A cell that is not seen.
pub const EMPTY: Color = Color([233, 236, 240]);

/// Colours that can be told apart without colour vision too (Okabe and Ito).
pub const HUES: [Color; 6] = [
    Color([0, 114, 178]),
    Color([213, 94, 0]),
    Color([0, 158, 115]),
    Color([204, 121, 167]),
    Color([230, 159, 0]),
    Color([86, 180, 233]),
];

/// How much of a hue a seen cell gets.
pub const TINT: f64 = 0.45;

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// From left to right.
    pub width: f64,
    /// From top to bottom.
    pub height: f64,
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The first character.
    Start,
    /// The middle.
    Middle,
    /// The last character.
    End,
}

/// A line of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// What it says.
    pub text: String,
    /// The anchor on the baseline.
    pub at: [f64; 2],
    /// Height of a line.
    pub size: f64,
    /// Which end is there.
    pub anchor: Anchor,
    /// Its colour.
    pub color: Color,
    /// Whether it runs upwards.
    pub is_vertical: bool,
}

/// Something that is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Element {
    /// Filled rectangles of one colour.
    Fill {
        /// The rectangles.
        areas: Vec<Area>,
        /// Their colour.
        color: Color,
        /// 0 for none of it, 1 for all.
        opacity: f64,
    },
    /// The bounds of rectangles, or lines where a rectangle has no extent.
    Outline {
        /// The rectangles.
        areas: Vec<Area>,
        /// The colour of the lines.
        color: Color,
        /// Their width.
        width: f64,
    },
    /// A line of text.
    Text(Text),
}

/// A drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// Width and height.
    pub size: [f64; 2],
    /// What is drawn, back to front.
    pub elements: Vec<Element>,
}

impl Drawing {
    /// An empty drawing, as large as nothing.
    pub fn new() -> Self {
        Self { size: [0.0; 2], elements: Vec::new() }
    }

    /// Makes sure that a point lies inside, with a margin.
    pub fn reach(&mut self, [x, y]: [f64; 2]) {
        const MARGIN: f64 = 16.0;
        self.size = [self.size[0].max(x + MARGIN), self.size[1].max(y + MARGIN)];
    }

    /// Fills rectangles.
    pub fn fill(&mut self, areas: Vec<Area>, color: Color, opacity: f64) {
        if !areas.is_empty() {
            self.elements.push(Element::Fill { areas, color, opacity });
        }
    }

    /// Draws the bounds of rectangles.
    pub fn outline(&mut self, areas: Vec<Area>, color: Color, width: f64) {
        if !areas.is_empty() {
            self.elements.push(Element::Outline { areas, color, width });
        }
    }

    /// Writes a line of text from its start.
    pub fn write(&mut self, text: impl Into<String>, at: [f64; 2], size: f64, color: Color) {
        self.label(text, at, size, color, Anchor::Start);
    }

    /// Writes a line of text.
    pub fn label(
        &mut self,
        text: impl Into<String>,
        at: [f64; 2],
        size: f64,
        color: Color,
        anchor: Anchor,
    ) {
        let text = Text { text: text.into(), at, size, anchor, color, is_vertical: false };
        self.elements.push(Element::Text(text));
    }

    /// Writes a line of text upwards, with its middle at a point.
    pub fn label_upwards(&mut self, text: &str, at: [f64; 2], size: f64, color: Color) {
        let (text, anchor) = (text.to_string(), Anchor::Middle);
        self.elements.push(Element::Text(Text {
            text,
            at,
            size,
            anchor,
            color,
            is_vertical: true,
        }));
    }

    /// Adds another drawing, moved by `offset`.
    pub fn place(&mut self, other: Self, offset: [f64; 2]) {
        let moved = |areas: Vec<Area>| -> Vec<Area> {
            let shift = |area: Area| Area { x: area.x + offset[0], y: area.y + offset[1], ..area };
            areas.into_iter().map(shift).collect()
        };
        self.elements.extend(other.elements.into_iter().map(|element| match element {
            Element::Fill { areas, color, opacity } => {
                Element::Fill { areas: moved(areas), color, opacity }
            }
            Element::Outline { areas, color, width } => {
                Element::Outline { areas: moved(areas), color, width }
            }
            Element::Text(text) => {
                let at = [text.at[0] + offset[0], text.at[1] + offset[1]];
                Element::Text(Text { at, ..text })
            }
        }));
        let end = [0, 1].map(|i| self.size[i].max(offset[i] + other.size[i]));
        self.size = end;
    }
}
