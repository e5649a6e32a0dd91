//! Pipelines of images: the operators before the first random one, and a random crop.

use std::path::Path;

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::parquet_files::names_parquet;
use coprep_protocol::shard_list::{DEFAULT_IMAGE, names_shards};
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, DEFAULT_RATIO, DEFAULT_SCALE, Interpolation, Op, ParquetFiles,
    PipelineSpec, ResizeTo, Source, TarShards,
};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Operators that prepare a folder of images. In JSON, names and values are those of torchvision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageOperators {
    /// Pixels of the shorter side after a resize. `None` for no resize.
    pub resize: Option<u32>,
    /// Filter of the resize.
    #[serde(with = "InterpolationName")]
    pub interpolation: Interpolation,
    /// Height and width of a central crop. `None` for no crop.
    pub center_crop: Option<u32>,
    /// `true` if images are turned as their EXIF data says.
    pub exif: bool,
    /// Height and width of the random crop, which is the first random operator.
    pub image_size: u32,
}

/// The names of [`Interpolation`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Interpolation", rename_all = "lowercase")]
enum InterpolationName {
    Nearest,
    Bilinear,
    Bicubic,
}

impl ImageOperators {
    /// Builds the pipeline of what [`source`] names. Of shards and parquet files no labels are used: they need not
    /// be there.
    ///
    /// # Errors
    /// As [`source`].
    pub fn pipeline(&self, named: &Path) -> Result<PipelineSpec> {
        Ok(self.of(source(named, DEFAULT_IMAGE, None)?))
    }

    /// Builds the pipeline of a source.
    #[must_use]
    pub fn of(&self, source: Source) -> PipelineSpec {
        PipelineSpec {
            source,
            ops: self.operators(),
        }
    }

    fn operators(&self) -> Vec<Op> {
        let mut ops = vec![Op::Decode {
            apply_exif_orientation: self.exif,
            max_pixels: DEFAULT_MAX_PIXELS,
            scaled: true,
        }];
        ops.extend(self.resize.map(|n| Op::Resize {
            to: ResizeTo::Shorter(n),
            interpolation: self.interpolation,
        }));
        ops.extend(self.center_crop.map(|n| Op::CenterCrop {
            height: n,
            width: n,
        }));
        ops.push(Op::RandomResizedCrop {
            height: self.image_size,
            width: self.image_size,
            scale: DEFAULT_SCALE,
            ratio: DEFAULT_RATIO,
            interpolation: Interpolation::Bilinear,
        });
        ops
    }
}

/// Returns the source that a person names: a folder that has one subfolder per class, the URL of such a folder, tar shards,
/// or parquet files, whose parts or columns `image` and `label` name.
///
/// # Errors
/// If the folder does not exist, if its absolute path is not UTF-8, or if a URL or a part is not accepted.
pub fn source(named: &Path, image: &str, label: Option<&str>) -> Result<Source> {
    let text = named.to_str();
    if let Some(text) = text.filter(|text| names_parquet(text) && !named.is_dir()) {
        return Ok(Source::Parquet(ParquetFiles::of_command(
            text, image, label,
        )?));
    }
    if let Some(text) = text.filter(|text| names_shards(text) && !named.is_dir()) {
        let shards = TarShards::named(&[text.to_owned()], image, label)?;
        return Ok(Source::TarShards(shards));
    }
    let root = match text.map(DatasetUrl::parse).transpose()?.flatten() {
        Some(url) => url.to_string(),
        None => resolved(named)?,
    };
    Ok(Source::ImageFolder { root })
}

/// Returns the absolute path of a folder, without links.
fn resolved(folder: &Path) -> Result<String> {
    let folder = folder
        .canonicalize()
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    let root = folder.into_os_string().into_string();
    root.map_err(|f| format!("{f:?} is not UTF-8").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATORS: ImageOperators = ImageOperators {
        resize: Some(256),
        interpolation: Interpolation::Bicubic,
        center_crop: None,
        exif: true,
        image_size: 224,
    };

    #[test]
    fn operators_survive_json_with_the_names_of_torchvision() {
        let json = serde_json::to_string(&OPERATORS).unwrap();
        assert!(json.contains(r#""interpolation":"bicubic""#), "{json}");
        assert_eq!(
            serde_json::from_str::<ImageOperators>(&json).unwrap(),
            OPERATORS
        );
    }

    #[test]
    fn a_pipeline_has_the_operators_that_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let text = OPERATORS.pipeline(folder.path()).unwrap().to_string();
        assert!(text.contains("bicubic") && text.contains("224"), "{text}");
        assert!(!text.contains("center_crop"), "{text}");
    }

    #[test]
    fn shards_and_parquet_files_are_told_from_folders() {
        let scratch = tempfile::tempdir().unwrap();
        let source = |named: &Path| source(named, "jpg", None).unwrap();
        let shards = source(Path::new("s3://b/t-{0..9}.tar"));
        assert!(matches!(shards, Source::TarShards(list) if list.shards.len() == 10));
        let files = source(Path::new("s3://b/t-{0..9}.parquet"));
        assert!(matches!(files, Source::Parquet(list) if list.files.len() == 10));
        for name in ["photos.tar", "photos.parquet"] {
            let folder = scratch.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            assert!(matches!(source(&folder), Source::ImageFolder { .. }));
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = OPERATORS
            .pipeline(Path::new("/nowhere/photos"))
            .unwrap_err();
        assert!(
            error.to_string().starts_with("/nowhere/photos: "),
            "{error}"
        );
    }
}
