//! Checks the layers of the coordinator: its root modules stand in one order, and each uses only those below it. The
//! test reads the sources.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The root modules of the crate, from the lowest to the highest.
const LAYERS: [&str; 10] = [
    "error",
    "settings",
    "failpoints",
    "connection",
    "observe",
    "caches",
    "produce",
    "stream",
    "registry",
    "server",
];
/// Names under which `lib.rs` exports items of its modules, as far as modules use these names.
const ALIASES: [(&str, &str); 4] = [
    ("Error", "error"),
    ("Result", "error"),
    ("Settings", "settings"),
    ("Monitor", "registry"),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

fn layer(root: &Path, file: &Path) -> String {
    let first = file
        .strip_prefix(root)
        .unwrap()
        .components()
        .next()
        .unwrap();
    let name = first.as_os_str().to_str().unwrap();
    name.trim_end_matches(".rs").to_owned()
}

/// Returns the names that follow `crate::` in code, whether in a `use` or in a path.
fn used(text: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n");
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let list = after
            .strip_prefix('{')
            .map(|rest| rest.split('}').next().unwrap_or(""));
        for name in list.unwrap_or(after).split(',') {
            let word = |c: char| !c.is_alphanumeric() && c != '_';
            let name = name.trim().split(word).next().unwrap_or("");
            names.insert(name.to_owned());
            if list.is_none() {
                break;
            }
        }
    }
    names
}

#[test]
fn each_layer_uses_only_those_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let floors: BTreeMap<&str, usize> = LAYERS.into_iter().zip(0..).collect();
    let aliases = BTreeMap::from(ALIASES);
    let mut upward = Vec::new();
    let mut seen = BTreeSet::new();
    for file in sources(&root) {
        let layer = layer(&root, &file);
        if layer == "lib" {
            continue;
        }
        let Some(floor) = floors.get(layer.as_str()) else {
            panic!(
                "{} is in no layer: add it to the list, on its floor",
                file.display()
            );
        };
        for name in used(&std::fs::read_to_string(&file).unwrap()) {
            let target = aliases.get(name.as_str()).copied().unwrap_or(&name);
            if let Some(other) = floors.get(target) {
                seen.insert((layer.clone(), target.to_owned()));
                if other > floor {
                    upward.push(format!("{} uses {target}", file.display()));
                }
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
    // This shows that the sources were really read.
    assert!(
        seen.contains(&("server".into(), "registry".into())),
        "{seen:?}"
    );
    assert!(
        seen.contains(&("stream".into(), "produce".into())),
        "{seen:?}"
    );
}

#[test]
fn uses_are_found() {
    let text = "use crate::{Error, stream::X};\nuse crate::caches::Y; // crate::server\nlet a = crate::observe::f();";
    let expected = ["Error", "caches", "observe", "stream"].map(String::from);
    assert_eq!(used(text), BTreeSet::from(expected));
}
