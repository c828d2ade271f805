//! Whether a JPEG file holds all of its image.
//!
//! The decoder accepts data that stops early and fills up the rest. A file that has its end marker is complete, whatever
//! else is wrong with it. Without one, as when only its last two bytes are lost, all image data may still be there.

use image::{ImageFormat, RgbImage};

use super::options::{DecodeOptions, Orientation};
use super::reader::decode_as;

/// Second bytes of markers; the first is 0xff.
mod marker {
    pub const TEMPORARY: u8 = 0x01;
    pub const FRAMES: std::ops::RangeInclusive<u8> = 0xc0..=0xcf;
    pub const HUFFMAN_TABLES: u8 = 0xc4;
    pub const EXTENSION: u8 = 0xc8;
    pub const ARITHMETIC_CONDITIONS: u8 = 0xcc;
    pub const RESTARTS: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;
    pub const START_OF_IMAGE: u8 = 0xd8;
    pub const END_OF_IMAGE: u8 = 0xd9;
    pub const START_OF_SCAN: u8 = 0xda;
}

/// Coefficients of a block.
const COEFFICIENTS: usize = 64;

/// What may stand in place of lost data. A decoder that runs past the end reads zeros, so these begin differently.
const CONTINUATIONS: [u8; 3] = [0xa5, 0x5a, 0xfe];

/// How much of it; more than the largest block of three or four components can need.
const CONTINUATION_LENGTH: usize = 4096;

/// Whether `decoded`, the result of decoding `bytes`, shows all of the image.
pub(super) fn is_complete(bytes: &[u8], decoded: &RgbImage, orientation: Orientation) -> bool {
    match scan(bytes) {
        Ending::Marked => true,
        Ending::BeforeLastScan => false,
        // All the scans are there. If the last one is short of data, the image depends on what follows.
        Ending::InLastScan => CONTINUATIONS.iter().all(|&byte| {
            let end = bytes.len() - usize::from(bytes.last() == Some(&0xff));
            let mut longer = bytes[..end].to_vec();
            longer.resize(end + CONTINUATION_LENGTH, byte);
            longer.extend([0xff, marker::END_OF_IMAGE]);
            // The limits have let the same image pass already.
            let options = DecodeOptions { orientation, max_pixels: u64::MAX };
            decode_as(ImageFormat::Jpeg, &longer, "", &options).is_ok_and(|other| other == *decoded)
        }),
    }
}

/// Whether the data ends before its last scan begins.
pub(super) fn lacks_scans(bytes: &[u8]) -> bool {
    scan(bytes) == Ending::BeforeLastScan
}

/// How the data ends.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
    /// By its end marker.
    Marked,
    /// Within the data of a scan, after which the image has no further scan.
    InLastScan,
    /// Anywhere else.
    BeforeLastScan,
}

/// Walks from marker to marker.
fn scan(bytes: &[u8]) -> Ending {
    // Per component: id, and for each coefficient whether its lowest bit has been sent.
    let mut components: Vec<(u8, [bool; COEFFICIENTS])> = Vec::new();
    let mut rest = bytes;
    let mut in_scan = false;
    loop {
        // Data of a scan, or garbage between segments, up to a marker; 0xff00 is data and 0xff is filling.
        let marker =
            rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff));
        let Some(position) = marker else {
            let all_sent = components.iter().all(|(_, sent)| sent.iter().all(|&sent| sent));
            return if in_scan && all_sent { Ending::InLastScan } else { Ending::BeforeLastScan };
        };
        let code = rest[position + 1];
        rest = &rest[position + 2..];
        if code == marker::END_OF_IMAGE {
            return Ending::Marked;
        }
        if marker::RESTARTS.contains(&code)
            || matches!(code, marker::START_OF_IMAGE | marker::TEMPORARY)
        {
            continue;
        }
        let Some((segment, after)) = split_segment(rest) else { return Ending::BeforeLastScan };
        rest = after;
        in_scan = code == marker::START_OF_SCAN;
        let tables = [marker::HUFFMAN_TABLES, marker::EXTENSION, marker::ARITHMETIC_CONDITIONS];
        if in_scan {
            record_scan(segment, &mut components);
        } else if marker::FRAMES.contains(&code) && !tables.contains(&code) {
            // Precision, height, width and number of components; three bytes per component.
            let ids = segment.get(6..).unwrap_or_default().chunks_exact(3);
            components = ids.map(|component| (component[0], [false; COEFFICIENTS])).collect();
        }
    }
}

/// Splits off a segment, which starts with its length.
fn split_segment(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let (segment, after) = rest.split_at_checked(length)?;
    Some((segment.get(2..)?, after))
}

/// Notes which coefficients a scan completes.
fn record_scan(segment: &[u8], components: &mut [(u8, [bool; COEFFICIENTS])]) {
    let Some((&count, rest)) = segment.split_first() else { return };
    let Some((selectors, parameters)) = rest.split_at_checked(2 * usize::from(count)) else {
        return;
    };
    // First and last coefficient, and the lowest bit in the lower half of the last byte.
    let &[first, last, bits] = parameters else { return };
    if bits & 0x0f != 0 {
        return;
    }
    for selector in selectors.chunks_exact(2) {
        let component = components.iter_mut().find(|(id, _)| *id == selector[0]);
        if let Some((_, sent)) = component
            && let Some(band) = sent.get_mut(usize::from(first)..=usize::from(last))
        {
            band.fill(true);
        }
    }
}
