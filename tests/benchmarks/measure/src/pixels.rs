//! Prepares images of a folder, decoded in full and reduced, and writes the pixels for `pixels.py`, which compares them
//! with Pillow's.
//!
//! ```text
//! cargo run --release -p coprep-benchmarks --bin pixels -- DATA OUT 200
//! python tests/benchmarks/measure/src/pixels.py OUT
//! ```
//!
//! `OUT` receives a list of the samples (`id path`) and one file per way, with 3 x 224 x 224 bytes per sample.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use coprep_pipeline::{Dataset, Pipeline, SampleKey, Scratch};
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op, ResizeTo, Source};

const SIDE: u32 = 224;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [data, out, count] = arguments.as_slice() else {
        return Err("usage: pixels DATA OUT COUNT".into());
    };
    let (root, out) = (std::path::absolute(data)?, Path::new(out));
    let dataset = Dataset::open(&Source::ImageFolder {
        root: root.to_string_lossy().into(),
    })?;
    let ids = spread(dataset.len(), count.parse()?);
    std::fs::create_dir_all(out)?;
    let mut list = File::create(out.join("samples"))?;
    for &id in &ids {
        writeln!(list, "{id} {}", dataset.path(id).display())?;
    }
    for (name, ops) in [("random", random()), ("central", central())] {
        let reduced = Pipeline::compile(&ops)?;
        write(
            &dataset,
            &ids,
            &reduced.exact(),
            &out.join(format!("{name}.exact")),
        )?;
        write(
            &dataset,
            &ids,
            &reduced,
            &out.join(format!("{name}.reduced")),
        )?;
    }
    Ok(())
}

/// Returns `count` ids, evenly spread.
fn spread(len: u32, count: u32) -> Vec<u32> {
    (0..len)
        .step_by((len / count.max(1)).max(1) as usize)
        .take(count as usize)
        .collect()
}

fn decode() -> Op {
    Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    }
}

fn random() -> Vec<Op> {
    let crop = Op::RandomResizedCrop {
        height: SIDE,
        width: SIDE,
        scale: (0.08, 1.0),
        ratio: (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Interpolation::Bilinear,
    };
    vec![decode(), crop]
}

fn central() -> Vec<Op> {
    let resize = Op::Resize {
        to: ResizeTo::Shorter(256),
        interpolation: Interpolation::Bilinear,
    };
    vec![
        decode(),
        resize,
        Op::CenterCrop {
            height: SIDE,
            width: SIDE,
        },
    ]
}

fn write(
    dataset: &Dataset,
    ids: &[u32],
    pipeline: &Pipeline,
    path: &Path,
) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(File::create(path)?);
    let (mut file, mut scratch) = (Vec::new(), Scratch::new());
    let mut slot = vec![0; pipeline.output().sample_bytes()];
    for &id in ids {
        dataset.fetch(id, &mut file)?;
        pipeline.prepare_encoded(
            &file,
            SampleKey {
                seed: 0,
                id,
                visit: 0,
            },
            &mut scratch,
            || &mut slot,
        )?;
        out.write_all(&slot)?;
    }
    Ok(out.flush()?)
}
