//! Lines made of pieces of text, each of which is shown whole or not at all.

use ratatui::text::{Line, Span};

use crate::theme::{Theme, Tone};

/// A piece of text that is shown whole or not at all.
pub(super) type Piece = (Tone, String);

pub(super) fn plain(text: impl Into<String>) -> Piece {
    (Tone::Plain, text.into())
}

/// Flows pieces into at most `lines` lines. The first piece of a line is shortened if it is too long.
pub(super) fn flow(
    theme: &Theme,
    pieces: Vec<Piece>,
    width: usize,
    lines: usize,
) -> Vec<Line<'static>> {
    const BETWEEN: &str = ", ";
    const INDENT: usize = 2;
    let mut flowed: Vec<(usize, Vec<Span>)> = Vec::new();
    for (tone, text) in pieces {
        let needs = Span::raw(&text).width();
        let begun = flowed.len();
        match flowed.last_mut() {
            Some((used, spans)) if *used + BETWEEN.len() + needs <= width => {
                *used += BETWEEN.len() + needs;
                spans.push(Span::raw(BETWEEN));
                spans.push(theme.span(tone, text));
            }
            _ if begun < lines => {
                let text = theme.shorten(&text, width.saturating_sub(INDENT));
                let used = INDENT + Span::raw(&text).width();
                let spans = vec![Span::raw(" ".repeat(INDENT)), theme.span(tone, text)];
                flowed.push((used, spans));
            }
            _ => {}
        }
    }
    flowed
        .into_iter()
        .map(|(_, spans)| Line::from(spans))
        .collect()
}

/// Puts as many pieces into one line as fit.
pub(super) fn one_line(theme: &Theme, pieces: Vec<Piece>, width: usize) -> Line<'static> {
    // One column more, since the indent of notes below a table becomes a single space here.
    let mut line = flow(theme, pieces, width + 1, 1).pop().unwrap_or_default();
    if let Some(indent) = line.spans.first_mut() {
        *indent = Span::raw(" ");
    }
    line
}
