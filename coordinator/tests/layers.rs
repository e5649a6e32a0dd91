//! Checks from the sources that no modules depend on each other in a circle.
//!
//! The root modules of the coordinator stand in one order, and each uses only those below it. In all crates of the
//! workspace no siblings, which are the files and folders of one folder, import each other, be it directly or in a
//! longer circle.
//!
//! A module and the modules in it may import each other. The parent defines a type, and its children hold parts of the
//! implementation, which takes imports both ways. A child claims to be no more than a part of its parent, so nobody is
//! misled. Siblings claim to be separate subjects. In a circle none of them can be read, tested or changed without the
//! others.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use imports::Modules;

/// The root modules of the coordinator, from the lowest to the highest.
const LAYERS: [&str; 11] = [
    "error",
    "settings",
    "failpoints",
    "connection",
    "device",
    "observe",
    "caches",
    "produce",
    "stream",
    "registry",
    "server",
];

/// Returns the root file of each library, program and test in the workspace, by its name.
fn crates() -> BTreeMap<String, PathBuf> {
    let arguments = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{why}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages.iter().flat_map(|package| {
        let targets = package["targets"].as_array().unwrap();
        targets.iter().map(|target| {
            let root = PathBuf::from(target["src_path"].as_str().unwrap());
            (format!("{} of {}", target["name"], package["name"]), root)
        })
    });
    targets.collect()
}

#[test]
fn each_layer_uses_only_those_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let modules = Modules::read(&root);
    let floors: BTreeMap<&str, usize> = LAYERS.into_iter().zip(0..).collect();
    for path in modules.paths() {
        if let [layer] = path.as_slice() {
            let is_known = floors.contains_key(layer.as_str());
            assert!(
                is_known,
                "{layer} is in no layer: add it to the list, on its floor"
            );
        }
    }
    let mut upward = Vec::new();
    let mut seen = BTreeSet::new();
    for (from, to) in modules.imports() {
        // The root of the crate only declares the layers, and passes on their items.
        let (Some(layer), Some(other)) = (from.first(), to.first()) else {
            continue;
        };
        if floors[other.as_str()] > floors[layer.as_str()] {
            upward.push(format!("{} uses {}", from.join("::"), to.join("::")));
        }
        seen.insert((layer.clone(), other.clone()));
    }
    assert!(upward.is_empty(), "{upward:#?}");
    // This shows that the sources were really read.
    for pair in [("server", "registry"), ("stream", "produce")] {
        let (from, to) = pair;
        assert!(seen.contains(&(from.into(), to.into())), "{seen:?}");
    }
}

#[test]
fn no_siblings_import_each_other_in_a_circle() {
    let crates = crates();
    // This shows that the workspace was really found.
    for name in [
        "\"coprep_coordinator\" of \"coprep-coordinator\"",
        "\"layers\" of \"coprep-coordinator\"",
    ] {
        assert!(crates.contains_key(name), "{:?}", crates.keys());
    }
    let circles: Vec<_> = crates
        .into_iter()
        .map(|(name, root)| (name, Modules::read(&root).circles()))
        .filter(|(_, circles)| !circles.is_empty())
        .collect();
    assert!(circles.is_empty(), "{circles:#?}");
}
