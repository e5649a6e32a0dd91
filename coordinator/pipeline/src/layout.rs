//! The last step: from interleaved rows to planes, mirrored and normalised on the way, straight into
//! the slot.

use coprep_protocol::spec::Dtype;

use crate::codec::View;

/// `(x / 255 - mean) / std` for each channel and each of the 256 values, in the order and precision
/// (float32) in which torchvision computes it.
pub(crate) struct Table([[f32; 256]; 3]);

impl Table {
    pub(crate) fn new(mean: [f32; 3], std: [f32; 3]) -> Self {
        let value = |channel: usize, x: usize| (x as f32 / 255.0 - mean[channel]) / std[channel];
        Table(std::array::from_fn(|channel| {
            std::array::from_fn(|x| value(channel, x))
        }))
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

/// Element type that [`write`] produces.
pub(crate) fn dtype(table: Option<&Table>) -> Dtype {
    if table.is_some() {
        Dtype::F32
    } else {
        Dtype::U8
    }
}

/// Writes the part as three planes into `out`, of exactly their bytes.
pub(crate) fn write(view: View<'_>, mirrored: bool, table: Option<&Table>, out: &mut [u8]) {
    match table {
        None => planes(view, mirrored, out, |_, x| [x]),
        Some(table) => planes(view, mirrored, out, |channel, x| {
            table.0[channel][x as usize].to_ne_bytes()
        }),
    }
}

fn planes<const N: usize>(
    view: View<'_>,
    mirrored: bool,
    out: &mut [u8],
    value: impl Fn(usize, u8) -> [u8; N],
) {
    let width = view.rect.size.width as usize;
    let (elements, _) = out.as_chunks_mut::<N>();
    let (red, rest) = elements.split_at_mut(elements.len() / 3);
    let (green, blue) = rest.split_at_mut(rest.len() / 2);
    let targets = red
        .chunks_exact_mut(width)
        .zip(green.chunks_exact_mut(width))
        .zip(blue.chunks_exact_mut(width));
    for (((red, green), blue), row) in targets.zip(view.rows()) {
        let (pixels, _) = row.as_chunks::<3>();
        let place = |i: usize| if mirrored { width - 1 - i } else { i };
        for (i, &[r, g, b]) in pixels.iter().enumerate() {
            red[place(i)] = value(0, r);
            green[place(i)] = value(1, g);
            blue[place(i)] = value(2, b);
        }
    }
}
