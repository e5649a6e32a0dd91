//! Finds the columns of images and labels in a schema, and the names of classes.

use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::file::metadata::KeyValue;
use parquet::file::statistics::Statistics;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};
use serde_json::Value;

use crate::fault::FileFault;

/// Most columns that an error names.
const MOST_NAMED: usize = 12;
const NAME_A_COLUMN: &str = "name the column by image= or label=; label=None for no labels";

/// Returns the position of the column that holds images: one of binary values with this path, or the field `bytes` of a
/// struct with this path.
pub(crate) fn image_column(schema: &SchemaDescriptor, name: &str) -> Result<usize, FileFault> {
    // Hugging Face's `datasets` writes an image as a struct of its bytes and its path.
    let (position, column) = find(schema, "image", name, &format!("{name}.bytes"))?;
    if column.physical_type() == Type::BYTE_ARRAY && !is_text(column) {
        return Ok(position);
    }
    let what = format!(
        "its column {} holds {}, and images are binary values",
        column.path().string(),
        kind(column)
    );
    Err(FileFault::new(what, NAME_A_COLUMN))
}

/// Returns the position of the column that holds labels.
pub(crate) fn label_column(schema: &SchemaDescriptor, name: &str) -> Result<usize, FileFault> {
    let (position, column) = find(schema, "label", name, name)?;
    let physical = column.physical_type();
    let is_integer = matches!(physical, Type::INT32 | Type::INT64 | Type::BOOLEAN);
    if is_integer && !is_other_number(column) {
        return Ok(position);
    }
    let what = format!(
        "its column {} holds {}, and labels are integers",
        column.path().string(),
        kind(column)
    );
    Err(FileFault::new(
        what,
        "write the numbers of classes, name another column by label=, or use label=None for no labels",
    ))
}

/// Returns the column with one of two paths.
fn find<'a>(
    schema: &'a SchemaDescriptor,
    argument: &str,
    name: &str,
    other: &str,
) -> Result<(usize, &'a ColumnDescriptor), FileFault> {
    let columns = schema.columns();
    let has_path = |wanted: &str| columns.iter().position(|c| c.path().string() == wanted);
    let Some(position) = has_path(name).or_else(|| has_path(other)) else {
        let mut names: Vec<String> = columns.iter().map(|c| c.path().string()).collect();
        let more = names.len().saturating_sub(MOST_NAMED);
        names.truncate(MOST_NAMED);
        let mut named = names.join(", ");
        if more > 0 {
            named.push_str(&format!(" and {more} more"));
        }
        let what = format!("it has no column {name} for {argument}=, but {named}");
        return Err(FileFault::new(what, NAME_A_COLUMN));
    };
    let column = &*columns[position];
    if column.max_rep_level() > 0 {
        let what = format!(
            "its column {} holds lists, and a sample has one value",
            column.path().string()
        );
        return Err(FileFault::new(what, NAME_A_COLUMN));
    }
    Ok((position, column))
}

fn is_text(column: &ColumnDescriptor) -> bool {
    // Files of older writers have the converted type alone.
    column.converted_type() == ConvertedType::UTF8
        || matches!(column.logical_type_ref(), Some(LogicalType::String))
}

/// Returns `true` if values are stored as integers but are something else, such as dates.
fn is_other_number(column: &ColumnDescriptor) -> bool {
    let is_integer = matches!(
        column.logical_type_ref(),
        None | Some(LogicalType::Integer { .. })
    );
    // Older writers, such as those of Spark and Hive, give the converted type alone.
    let is_converted = matches!(
        column.converted_type(),
        ConvertedType::DECIMAL
            | ConvertedType::DATE
            | ConvertedType::TIME_MILLIS
            | ConvertedType::TIME_MICROS
            | ConvertedType::TIMESTAMP_MILLIS
            | ConvertedType::TIMESTAMP_MICROS
    );
    !is_integer || is_converted
}

pub(crate) fn is_unsigned(column: &ColumnDescriptor) -> bool {
    matches!(
        column.converted_type(),
        ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    )
}

/// Returns the number that is stored in 32 bits. A number beyond the column's type has its lower bits alone, as in pyarrow.
pub(crate) fn narrowed(stored: i32, column: &ColumnDescriptor) -> i64 {
    match column.converted_type() {
        ConvertedType::UINT_8 => i64::from(stored as u8),
        ConvertedType::UINT_16 => i64::from(stored as u16),
        ConvertedType::UINT_32 => i64::from(stored as u32),
        ConvertedType::INT_8 => i64::from(stored as i8),
        ConvertedType::INT_16 => i64::from(stored as i16),
        _ => i64::from(stored),
    }
}

/// Returns the type of a column for people.
fn kind(column: &ColumnDescriptor) -> String {
    match column.logical_type_ref() {
        _ if is_text(column) => "text".into(),
        Some(logical) => format!("{logical:?}").to_lowercase(),
        None if column.converted_type() != ConvertedType::NONE => {
            format!("{:?}", column.converted_type()).to_lowercase()
        }
        None => format!("{:?}", column.physical_type()).to_lowercase(),
    }
}

/// Returns the label that all rows of a chunk have, if its statistics tell.
pub(crate) fn only_label(
    statistics: Option<&Statistics>,
    column: &ColumnDescriptor,
) -> Option<i64> {
    // Of unsigned numbers the order in statistics is that of the writer.
    let is_told = |s: &&Statistics| s.null_count_opt() == Some(0) && !is_unsigned(column);
    let statistics = statistics.filter(is_told)?;
    match statistics {
        Statistics::Int64(s) => s.min_opt().filter(|min| Some(*min) == s.max_opt()).copied(),
        Statistics::Int32(s) => {
            let only = s.min_opt().filter(|min| Some(*min) == s.max_opt());
            only.map(|&only| narrowed(only, column))
        }
        _ => None,
    }
}

/// Returns the names of the classes of a label column, as Hugging Face's `datasets` writes them into a footer.
pub(crate) fn class_names(metadata: Option<&Vec<KeyValue>>, label: &str) -> Option<Vec<String>> {
    let entry = metadata?.iter().find(|entry| entry.key == "huggingface")?;
    let features: Value = serde_json::from_str(entry.value.as_ref()?).ok()?;
    let names = features
        .get("info")?
        .get("features")?
        .get(label)?
        .get("names")?;
    let name = |name: &Value| name.as_str().map(str::to_owned);
    names.as_array()?.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_hugging_face() {
        let text = r#"{"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}"#;
        let metadata = |value: &str| {
            vec![
                KeyValue::new("ARROW:schema".to_owned(), "x".to_owned()),
                KeyValue::new("huggingface".to_owned(), value.to_owned()),
            ]
        };
        let found = class_names(Some(&metadata(text)), "label");
        assert_eq!(found, Some(vec!["cat".to_owned(), "dog".to_owned()]));
        assert_eq!(class_names(Some(&metadata(text)), "other"), None);
        assert_eq!(class_names(Some(&metadata("{")), "label"), None);
        assert_eq!(class_names(None, "label"), None);
    }
}
