//! The parts that image files consist of: a JPEG's marker segments, and the chunks of PNG and WebP.
//!
//! Every walk ends where the bytes end, so that a prefix of a file gives the parts that lie in it.

/// Start of scan, the marker before the entropy-coded data.
const SOS: u8 = 0xda;

/// A marker segment of a JPEG.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) marker: u8,
    pub(crate) body: &'a [u8],
    /// Offset where the next segment may start.
    pub(crate) end: usize,
}

/// A chunk of a PNG or WebP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) kind: [u8; 4],
    pub(crate) body: &'a [u8],
}

/// Returns the first bytes of `bytes[at..]`, or `None` if there are fewer.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns a JPEG's marker segments before its first scan.
pub(crate) fn jpeg_segments(bytes: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut at = 2;
    std::iter::from_fn(move || {
        let segment = segment(bytes, at)?;
        at = segment.end;
        (segment.marker != SOS).then_some(segment)
    })
    .fuse()
}

/// Returns the marker segment at or after `at`.
fn segment(bytes: &[u8], at: usize) -> Option<Segment<'_>> {
    // The decoder skips anything up to the next marker, and any number of fill bytes before it.
    let mut at = at + bytes.get(at..)?.iter().position(|&b| b == 0xff)?;
    at += bytes.get(at..)?.iter().position(|&b| b != 0xff)?;
    let marker = bytes[at];
    // These markers stand alone, without a length and a body.
    if matches!(marker, 0x00 | 0x01 | 0xd0..=0xd8) {
        return Some(Segment {
            marker,
            body: &[],
            end: at + 1,
        });
    }
    let length = usize::from(u16::from_be_bytes(array(bytes, at + 1)?));
    // A length counts its own two bytes. A smaller one is broken, and must not lead back.
    let end = at + 1 + length.max(2);
    let body = bytes.get(at + 3..end)?;
    Some(Segment { marker, body, end })
}

/// Returns a PNG's chunks.
pub(crate) fn png_chunks(bytes: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = bytes.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (kind, after) = after.split_first_chunk()?;
        let (body, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        // The checksum of a chunk has 4 bytes.
        rest = after.get(4..).unwrap_or_default();
        Some(Chunk { kind: *kind, body })
    })
}

/// Returns a WebP's chunks.
pub(crate) fn webp_chunks(bytes: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    let promised = array(bytes, 4).map_or(0, |b| u32::from_le_bytes(b) as usize + 8);
    let mut rest = bytes.get(12..promised.min(bytes.len())).unwrap_or_default();
    std::iter::from_fn(move || {
        let (kind, after) = rest.split_first_chunk()?;
        let (length, after) = after.split_first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        let body = after.get(..length)?;
        // A chunk of odd length has a byte of padding.
        rest = after.get(length.next_multiple_of(2)..).unwrap_or_default();
        Some(Chunk { kind: *kind, body })
    })
}
