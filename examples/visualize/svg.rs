//! A drawing as SVG text, the same bytes for the same drawing.

use svg::Document;
use svg::node::element::{Path, Rectangle, Text as TextNode};

use crate::drawing::{Anchor, Area, Color, Drawing, Element, PAPER, Text};

/// Any sans-serif font; the layout leaves room for wide ones.
const FONTS: &str = "Helvetica, Arial, 'Liberation Sans', sans-serif";

/// Renders a drawing.
pub fn render(drawing: &Drawing) -> String {
    let [width, height] = drawing.size.map(number);
    let paper = Rectangle::new()
        .set("width", width.as_str())
        .set("height", height.as_str())
        .set("rx", "6")
        .set("fill", hex(PAPER));
    let mut document = Document::new()
        .set("viewBox", format!("0 0 {width} {height}"))
        .set("width", width.as_str())
        .set("height", height.as_str())
        .set("font-family", FONTS)
        .add(paper);
    for element in &drawing.elements {
        document = match element {
            Element::Fill { areas, color, opacity } => {
                let path = Path::new().set("fill", hex(*color)).set("d", path(areas));
                let is_opaque = *opacity == 1.0;
                document.add(if is_opaque { path } else { path.set("fill-opacity", *opacity) })
            }
            Element::Outline { areas, color, width } => document.add(
                Path::new()
                    .set("fill", "none")
                    .set("stroke", hex(*color))
                    .set("stroke-width", number(*width))
                    .set("d", path(areas)),
            ),
            Element::Text(text) => document.add(text_node(text)),
        };
    }
    format!("{document}\n")
}

fn text_node(text: &Text) -> TextNode {
    let [x, y] = text.at.map(number);
    let node = TextNode::new(text.text.as_str())
        .set("fill", hex(text.color))
        .set("font-size", number(text.size));
    let node = match text.anchor {
        Anchor::Start => node,
        Anchor::Middle => node.set("text-anchor", "middle"),
        Anchor::End => node.set("text-anchor", "end"),
    };
    if text.is_vertical {
        return node.set("transform", format!("translate({x} {y}) rotate(-90)"));
    }
    node.set("x", x).set("y", y)
}

fn path(areas: &[Area]) -> String {
    let mut path = String::new();
    for Area { x, y, width, height } in areas {
        let [x, y, width, height] = [*x, *y, *width, *height].map(number);
        path += &match (width.as_str(), height.as_str()) {
            ("0", _) => format!("M{x} {y}v{height}"),
            (_, "0") => format!("M{x} {y}h{width}"),
            _ => format!("M{x} {y}h{width}v{height}h-{width}z"),
        };
    }
    path
}

fn hex(Color([red, green, blue]): Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// At most two decimals, and none that are zero.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 1.0, 100.0, 2.5, 0.333].map(number), ["0", "1", "100", "2.5", "0.33"]);
    }

    #[test]
    fn text_is_escaped_and_lines_have_no_extent() {
        let mut drawing = Drawing::new();
        drawing.write("a < b & c", [1.0, 2.0], 10.0, PAPER);
        drawing.outline(vec![Area { x: 1.0, y: 2.0, width: 0.0, height: 5.0 }], PAPER, 1.0);
        let text = render(&drawing);
        assert!(text.contains("a &lt; b &amp; c"), "{text}");
        assert!(text.contains("\"M1 2v5\""), "{text}");
    }
}
