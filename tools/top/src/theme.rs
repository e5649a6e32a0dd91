//! Colours and glyphs of the terminal.

use std::borrow::Cow;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

/// Capabilities of the terminal that the drawing may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Theme {
    /// `true` to use the sixteen colours that every terminal has, and not only bold and dim.
    pub(crate) colour: bool,
    /// `true` to use characters beyond ASCII.
    pub(crate) utf8: bool,
}

/// Meaning of a text, which its style shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Dim,
    Head,
    /// The head of the focused table, on which keys act.
    Focus,
    Selected,
    Good,
    Notice,
    Bad,
}

/// Kind of a part of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Encoded,
    Decoded,
    Prepared,
    Empty,
}

impl Theme {
    /// Reads the theme from the environment: `NO_COLOR`, and the locale's character set.
    pub(crate) fn from_env() -> Self {
        // An empty variable counts as none, for `NO_COLOR` and for locales alike.
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Theme {
            colour: variable("NO_COLOR").is_none(),
            utf8: is_utf8(
                // The C library asks them in this order too.
                ["LC_ALL", "LC_CTYPE", "LANG"]
                    .into_iter()
                    .find_map(variable),
            ),
        }
    }

    pub(crate) fn style(&self, tone: Tone) -> Style {
        let plain = Style::new();
        let coloured = |colour| if self.colour { plain.fg(colour) } else { plain };
        match tone {
            Tone::Plain => plain,
            Tone::Dim => plain.add_modifier(Modifier::DIM),
            Tone::Head => coloured(Color::Cyan).add_modifier(Modifier::BOLD),
            Tone::Focus => coloured(Color::Cyan).add_modifier(Modifier::BOLD | Modifier::REVERSED),
            Tone::Selected => plain.add_modifier(Modifier::BOLD),
            Tone::Good => coloured(Color::Green),
            Tone::Notice => coloured(Color::Yellow),
            Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    pub(crate) fn span<'a>(&self, tone: Tone, text: impl Into<Cow<'a, str>>) -> Span<'a> {
        Span::styled(text, self.style(tone))
    }

    /// Returns the glyph of a part of a bar. Glyphs differ, so parts can be told apart without colour.
    pub(crate) fn glyph(&self, fill: Fill) -> char {
        match (fill, self.utf8) {
            (Fill::Encoded, true) => '░',
            (Fill::Decoded, true) => '▒',
            (Fill::Prepared, true) => '█',
            (Fill::Empty, true) => '·',
            (Fill::Encoded, false) => 'e',
            (Fill::Decoded, false) => 'd',
            (Fill::Prepared, false) => 'p',
            (Fill::Empty, false) => '.',
        }
    }

    fn fill_style(&self, fill: Fill) -> Style {
        match fill {
            Fill::Empty => self.style(Tone::Dim),
            Fill::Encoded if self.colour => Style::new().fg(Color::Blue),
            Fill::Decoded => self.style(Tone::Good),
            Fill::Prepared if self.colour => Style::new().fg(Color::Magenta),
            _ => Style::new(),
        }
    }

    /// Draws a bar of parts. Each part has its share of the whole.
    pub(crate) fn bar(&self, parts: &[(f64, Fill)], width: usize) -> Vec<Span<'static>> {
        let part = |(cells, fill): (usize, Fill)| {
            let glyphs: String = std::iter::repeat_n(self.glyph(fill), cells).collect();
            Span::styled(glyphs, self.fill_style(fill))
        };
        let parts = cells(parts, width);
        parts
            .into_iter()
            .filter(|&(n, _)| n > 0)
            .map(part)
            .collect()
    }

    /// Draws a gauge: `n` of `of` are busy.
    pub(crate) fn gauge(&self, n: u32, of: u32, width: usize) -> Vec<Span<'static>> {
        let (glyph, tone) = if self.utf8 {
            ('█', Tone::Good)
        } else {
            ('#', Tone::Good)
        };
        let share = f64::from(n) / f64::from(of.max(1));
        let full = boundary(share, width);
        let glyphs = std::iter::repeat_n(glyph, full).collect::<String>();
        let rest = std::iter::repeat_n(self.glyph(Fill::Empty), width - full).collect::<String>();
        vec![self.span(tone, glyphs), self.span(Tone::Dim, rest)]
    }

    pub(crate) fn ellipsis(&self) -> &'static str {
        if self.utf8 { "…" } else { "..." }
    }

    pub(crate) fn sorted(&self, descending: bool) -> char {
        match (descending, self.utf8) {
            (true, true) => '▼',
            (false, true) => '▲',
            (true, false) => 'v',
            (false, false) => '^',
        }
    }

    /// Replaces characters in names and paths that the terminal would take as commands or could not show.
    pub(crate) fn clean(&self, text: &str) -> String {
        let text = coprep_terminal::clean(text);
        if self.utf8 {
            return text;
        }
        text.replace(|c: char| !c.is_ascii(), "?")
    }

    /// Shortens a text to `width` columns by leaving out its middle.
    pub(crate) fn shorten(&self, text: &str, width: usize) -> String {
        let whole = Span::raw(text);
        if whole.width() <= width {
            return text.into();
        }
        let mark = self.ellipsis();
        let Some(room) = width.checked_sub(Span::raw(mark).width() + 1) else {
            return leading(text.chars(), width);
        };
        let start = leading(text.chars(), room / 2);
        // The end gets the larger part: the end of a path says more than its beginning.
        let end = leading(text.chars().rev(), room + 1 - Span::raw(&start).width());
        format!("{start}{mark}{}", end.chars().rev().collect::<String>())
    }
}

fn is_utf8(locale: Option<String>) -> bool {
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Returns the first characters that fit into `width` columns.
fn leading(text: impl Iterator<Item = char>, width: usize) -> String {
    let mut taken = 0;
    text.take_while(|c| {
        taken += Span::raw(c.to_string()).width();
        taken <= width
    })
    .collect()
}

/// Returns the cell where a share of a bar ends.
fn boundary(share: f64, width: usize) -> usize {
    ((share * width as f64).round() as usize).min(width)
}

/// Returns the number of cells of each part, and of the empty rest.
fn cells(parts: &[(f64, Fill)], width: usize) -> Vec<(usize, Fill)> {
    let (mut share, mut done) = (0.0, 0);
    let mut taken = Vec::with_capacity(parts.len() + 1);
    for &(part, fill) in parts {
        share += part.max(0.0);
        // Ends are rounded, not lengths, so that the parts fill their share of the bar exactly.
        let end = boundary(share, width);
        taken.push((end - done, fill));
        done = end;
    }
    taken.push((width - done, Fill::Empty));
    taken
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const UTF8: Theme = Theme {
        colour: true,
        utf8: true,
    };
    pub(crate) const ASCII: Theme = Theme {
        colour: false,
        utf8: false,
    };

    fn text(spans: Vec<Span<'_>>) -> String {
        spans.iter().map(|s| s.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_is_as_wide_as_it_is_told_whatever_its_parts() {
        let parts = [
            (0.333, Fill::Encoded),
            (0.333, Fill::Decoded),
            (0.334, Fill::Prepared),
        ];
        for width in 0..40 {
            assert_eq!(text(UTF8.bar(&parts, width)).chars().count(), width);
            assert_eq!(text(UTF8.gauge(7, 2, width)).chars().count(), width);
        }
        assert_eq!(text(ASCII.bar(&parts, 9)), "eeedddppp");
    }

    #[test]
    fn a_part_takes_its_share_of_the_bar() {
        let parts = [(0.25, Fill::Encoded), (0.5, Fill::Prepared)];
        assert_eq!(text(ASCII.bar(&parts, 8)), "eepppp..");
        assert_eq!(text(ASCII.gauge(1, 4, 8)), "##......");
        assert_eq!(text(ASCII.gauge(0, 0, 3)), "...");
        // Parts that exceed the whole fill the bar.
        assert_eq!(text(ASCII.bar(&[(2.0, Fill::Decoded)], 4)), "dddd");
    }

    #[test]
    fn a_long_path_loses_its_middle() {
        let path = "/data/train/n01440764/n01440764_10026.JPEG";
        assert_eq!(UTF8.shorten(path, 17), "/data/t…0026.JPEG");
        assert_eq!(UTF8.shorten(path, 42), path);
        assert_eq!(ASCII.shorten(path, 17), "/data/...026.JPEG");
        for width in 0..50 {
            let short = UTF8.shorten("/data/写真/風景/東京タワー.jpeg/学習", width);
            assert!(Span::raw(&short).width() <= width, "{short} at {width}");
        }
    }

    #[test]
    fn without_utf8_only_ascii_is_shown_and_never_a_control_character() {
        assert_eq!(ASCII.clean("Büro\u{1b}[31m"), "B?ro?[31m");
        assert_eq!(UTF8.clean("Büro\u{1b}[31m\n"), "Büro\u{fffd}[31m\u{fffd}");
    }

    #[test]
    fn the_locale_says_whether_it_is_utf8() {
        let is = |locale: &str| is_utf8(Some(locale.into()));
        assert!(is("de_DE.UTF-8") && is("C.utf8"));
        assert!(!is("C") && !is("de_DE.ISO-8859-1") && !is_utf8(None));
    }

    #[test]
    fn without_colour_no_tone_has_one() {
        use Tone::*;
        for tone in [Plain, Dim, Head, Focus, Selected, Good, Notice, Bad] {
            assert_eq!(ASCII.style(tone).fg, None, "{tone:?}");
        }
        assert_eq!(UTF8.style(Bad).fg, Some(Color::Red));
    }
}
