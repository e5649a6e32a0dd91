//! Tables that drop columns when the screen is too narrow.

use ratatui::text::{Line, Span};

use crate::theme::{Theme, Tone};

/// A column of a table with rows `R`.
pub(crate) struct Column<R> {
    pub(crate) head: &'static str,
    pub(crate) width: Width,
    /// Rank for dropping columns: the highest go first, equal ones together. Columns of rank 0 stay.
    pub(crate) rank: u8,
    pub(crate) cell: fn(&R, &Theme) -> Span<'static>,
}

/// Width of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// At least this wide, and as wide as its cells. Aligned to the right.
    Cells(usize),
    /// A bar of this many cells, drawn by [`Table::bar`].
    Bar(usize),
    /// At least this wide, or as wide as its head, and at most as wide as its cells, which are shortened in the middle.
    /// Aligned to the left. A table has at most one such column.
    Rest(usize),
}

/// Function that draws the bar of a row.
pub(crate) type Bar<R> = fn(&R, &Theme, usize) -> Vec<Span<'static>>;

/// A table to draw.
pub(crate) struct Table<'a, R> {
    pub(crate) columns: &'a [Column<R>],
    /// Head of the first column, in paths of its own.
    pub(crate) title: String,
    pub(crate) rows: &'a [R],
    pub(crate) selected: Option<usize>,
    pub(crate) focused: bool,
    /// Head of the column by which rows are sorted, and whether the greatest comes first.
    pub(crate) sorted: Option<(&'static str, bool)>,
    pub(crate) bar: Option<Bar<R>>,
}

/// Terminal columns between two columns of a table.
const GAP: usize = 1;
/// Columns of this rank or higher are dropped so that names and paths are shown whole, if those are at most [`WHOLE`]
/// wide.
const LUXURY: u8 = 9;
/// Longest names and paths, in columns, for which columns of rank [`LUXURY`] are dropped.
const WHOLE: usize = 24;

impl<R> Table<'_, R> {
    /// Returns head and rows in at most `height` lines of at most `width` columns. The selected row is among them.
    pub(crate) fn lines(&self, theme: &Theme, width: usize, height: usize) -> Vec<Line<'static>> {
        let shown = height.saturating_sub(1).min(self.rows.len());
        // Scroll just far enough to show the selected row.
        let first = self.selected.map_or(0, |s| (s + 1).saturating_sub(shown));
        let rows = &self.rows[first..first + shown];
        let heads = self.heads(theme, first, shown);
        let cells: Vec<_> = rows.iter().map(|row| self.cells(theme, row)).collect();
        // One column is for the marker of the selected row.
        let widths = self.widths(&heads, &cells, width.saturating_sub(1));
        let mut lines = vec![self.head(theme, &heads, &widths)];
        for (i, (row, cells)) in rows.iter().zip(cells).enumerate() {
            let selected = self.selected == Some(first + i);
            lines.push(self.row(theme, row, cells, &widths, selected));
        }
        // With a height of 0 there is no room for the head.
        lines.truncate(height);
        lines
    }

    /// Returns the heads. The first one is the title, with the number of rows or the range that is shown.
    fn heads(&self, theme: &Theme, first: usize, shown: usize) -> Vec<String> {
        let cut = match self.rows.len() {
            all if shown < all => format!(" {}-{}/{all}", first + 1, first + shown),
            all => format!(" {all}"),
        };
        let head = |(i, column): (usize, &Column<R>)| {
            let name = match i {
                0 => format!("{}{cut}", self.title),
                _ => column.head.into(),
            };
            match self.sorted {
                Some((by, descending)) if by == column.head => {
                    format!("{name}{}", theme.sorted(descending))
                }
                _ => name,
            }
        };
        self.columns.iter().enumerate().map(head).collect()
    }

    fn cells(&self, theme: &Theme, row: &R) -> Vec<Span<'static>> {
        self.columns
            .iter()
            .map(|column| (column.cell)(row, theme))
            .collect()
    }

    fn head(&self, theme: &Theme, heads: &[String], widths: &[Option<usize>]) -> Line<'static> {
        let marked = if self.focused {
            Tone::Focus
        } else {
            Tone::Head
        };
        let mut spans = vec![Span::raw(" ")];
        // A table without rows only shows its title.
        let shown = if self.rows.is_empty() { 1 } else { heads.len() };
        for (i, width) in kept(widths).take(shown) {
            let text = fitted(theme, &heads[i], width, self.columns[i].width);
            let tone = if i == 0 { marked } else { Tone::Head };
            // Mark only the words of the head, not the spaces that fill the column.
            let word = text.trim().to_owned();
            let before = text.len() - text.trim_start().len();
            let after = text.len() - before - word.len();
            spans.push(Span::raw(" ".repeat(before)));
            spans.push(theme.span(tone, word));
            spans.push(Span::raw(" ".repeat(after + GAP)));
        }
        Line::from(spans)
    }

    fn row(
        &self,
        theme: &Theme,
        row: &R,
        cells: Vec<Span<'static>>,
        widths: &[Option<usize>],
        selected: bool,
    ) -> Line<'static> {
        let marker = if selected { ">" } else { " " };
        let mut spans = vec![theme.span(Tone::Head, marker)];
        for (i, width) in kept(widths) {
            match (self.columns[i].width, self.bar) {
                (Width::Bar(_), Some(bar)) => spans.extend(bar(row, theme, width)),
                (kind, _) => {
                    let text = fitted(theme, &cells[i].content, width, kind);
                    let style = cells[i].style;
                    let style = if selected {
                        style.patch(theme.style(Tone::Selected))
                    } else {
                        style
                    };
                    spans.push(Span::styled(text, style));
                }
            }
            spans.push(Span::raw(" ".repeat(GAP)));
        }
        Line::from(spans)
    }

    /// Returns the width of each column, or `None` for a dropped one.
    fn widths(
        &self,
        heads: &[String],
        cells: &[Vec<Span<'_>>],
        width: usize,
    ) -> Vec<Option<usize>> {
        let needs = |i: usize| {
            let cells = cells.iter().map(|row| row[i].width());
            let head = Span::raw(&heads[i]).width();
            cells.fold(head, usize::max)
        };
        let head = |i: usize| Span::raw(&heads[i]).width();
        let least = |(i, column): (usize, &Column<R>)| match column.width {
            Width::Cells(least) => needs(i).max(least),
            Width::Bar(cells) => head(i).max(cells),
            Width::Rest(least) => head(i).max(least.min(needs(i))),
        };
        let least = self.columns.iter().enumerate().map(least);
        let mut widths: Vec<Option<usize>> = least.map(Some).collect();
        let is_rest = |column: &Column<R>| matches!(column.width, Width::Rest(_));
        let Some(rest) = self.columns.iter().position(is_rest) else {
            self.give_up(&mut widths, width, 1);
            return widths;
        };
        // First drop the least important columns so that names stay whole; then shorten names before dropping others.
        let shortened = widths[rest];
        widths[rest] = shortened.max(Some(needs(rest).min(WHOLE)));
        self.give_up(&mut widths, width, LUXURY);
        widths[rest] = shortened;
        self.give_up(&mut widths, width, 1);
        let room = width.saturating_sub(total(&widths));
        widths[rest] = widths[rest].map(|least| needs(rest).min(least + room).max(least));
        widths
    }

    /// Drops columns of at least this rank until the others fit. The column by which rows are sorted stays.
    fn give_up(&self, widths: &mut [Option<usize>], width: usize, rank: u8) {
        let by = self.sorted.map(|(by, _)| by);
        while total(widths) > width {
            let rank_of = |i: usize| self.columns[i].rank;
            let stays = |i: usize| rank_of(i) < rank || Some(self.columns[i].head) == by;
            let indices = kept(widths).map(|(i, _)| i).filter(|&i| !stays(i));
            let Some(greatest) = indices.map(rank_of).max() else {
                return;
            };
            for (i, width) in widths.iter_mut().enumerate() {
                if rank_of(i) == greatest && !stays(i) {
                    *width = None;
                }
            }
        }
    }

    /// Returns the whole table for a file: nothing is shortened, left out or selected.
    pub(crate) fn text(mut self, theme: &Theme) -> String {
        self.selected = None;
        let lines = self.lines(theme, usize::MAX / 2, usize::MAX / 2);
        let lines: Vec<String> = lines
            .iter()
            .map(|line| line.to_string().trim_end().to_owned())
            .collect();
        lines.join("\n")
    }
}

/// Returns the indices and widths of the columns that are not dropped.
fn kept(widths: &[Option<usize>]) -> impl Iterator<Item = (usize, usize)> {
    widths
        .iter()
        .enumerate()
        .filter_map(|(i, w)| Some((i, (*w)?)))
}

/// Shortens or pads a text to exactly this width.
fn fitted(theme: &Theme, text: &str, width: usize, kind: Width) -> String {
    let text = theme.shorten(text, width);
    let fill = " ".repeat(width.saturating_sub(Span::raw(&text).width()));
    match kind {
        Width::Cells(_) => fill + &text,
        Width::Bar(_) | Width::Rest(_) => text + &fill,
    }
}

/// Returns the width of all columns with their gaps.
fn total(widths: &[Option<usize>]) -> usize {
    kept(widths).map(|(_, width)| width + GAP).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = (&'static str, u32, u32);

    const COLUMNS: [Column<Row>; 4] = [
        Column {
            head: "name",
            width: Width::Rest(6),
            rank: 0,
            cell: |r, _| Span::raw(r.0),
        },
        Column {
            head: "a",
            width: Width::Cells(3),
            rank: 2,
            cell: |r, _| Span::raw(r.1.to_string()),
        },
        Column {
            head: "fill",
            width: Width::Bar(8),
            rank: 3,
            cell: |_, _| Span::raw(""),
        },
        Column {
            head: "b",
            width: Width::Cells(3),
            rank: 1,
            cell: |r, _| Span::raw(r.2.to_string()),
        },
    ];
    const THEME: Theme = Theme {
        colour: false,
        utf8: false,
    };

    fn table(rows: &[Row], selected: Option<usize>) -> Table<'_, Row> {
        Table {
            columns: &COLUMNS,
            title: "ROWS".into(),
            rows,
            selected,
            focused: true,
            sorted: Some(("b", true)),
            bar: Some(|row, theme, width| theme.gauge(row.1, 10, width)),
        }
    }

    fn shown(table: &Table<'_, Row>, width: usize, height: usize) -> Vec<String> {
        let lines = table.lines(&THEME, width, height);
        lines
            .iter()
            .map(|l| l.to_string().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn the_least_important_columns_go_first_and_then_names_are_shortened() {
        let rows = [("a_long_name", 5, 123), ("b", 10, 4)];
        let table = table(&rows, Some(1));
        let all = [
            " ROWS 2        a fill      bv",
            " a_long_name   5 ####.... 123",
            ">b            10 ########   4",
        ];
        assert_eq!(shown(&table, 31, 5), all);
        let two = [
            " ROWS 2        a  bv",
            " a_long_name   5 123",
            ">b            10   4",
        ];
        assert_eq!(shown(&table, 21, 5), two);
        let one = [" ROWS 2  bv", " a...me 123", ">b        4"];
        assert_eq!(shown(&table, 12, 5), one);
    }

    #[test]
    fn no_line_is_wider_than_there_is_room() {
        let rows = [("a_very_long_name_indeed", 5, 1_234_567), ("b", 10, 4)];
        for width in 20..60 {
            for line in table(&rows, None).lines(&THEME, width, 9) {
                assert!(line.width() <= width, "{line} at {width}");
            }
        }
    }

    #[test]
    fn the_selected_row_is_among_those_that_are_shown() {
        let rows: Vec<Row> = (0..9).map(|i| ("row", i, i)).collect();
        for selected in 0..9 {
            let lines = shown(&table(&rows, Some(selected)), 40, 4);
            assert_eq!(lines.len(), 4);
            let marked: Vec<_> = lines.iter().filter(|l| l.starts_with('>')).collect();
            assert!(
                marked.len() == 1 && marked[0].ends_with(&selected.to_string()),
                "{lines:?}"
            );
        }
        assert!(shown(&table(&rows, Some(8)), 40, 4)[0].contains("ROWS 7-9/9"));
        assert!(shown(&table(&rows, Some(8)), 40, 0).is_empty());
        assert_eq!(shown(&table(&[], None), 40, 5), [" ROWS 0"]);
    }
}
