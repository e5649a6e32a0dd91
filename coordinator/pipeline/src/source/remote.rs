//! Datasets in remote stores: listing a bucket as a folder of classes, and finding listed files.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use coprep_protocol::dataset_path::bytes_of;
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_storage::{LeftOut, ListEvent, ListedObject, ObjectTable, RemoteStore, Stores};

use super::{Dataset, FolderKind, Kind, invalid, no_classes, refuse_empty, url};
use crate::error::Error;

/// Number of objects after which somebody is told how many were listed.
const TELL_EVERY: u64 = 10_000;

/// Lists a prefix of a store as a folder with one subfolder per class, in the order of a local one.
pub(super) fn class_folder(
    root: &DatasetUrl,
    kind: &FolderKind,
    stores: &Stores,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Dataset, Error> {
    let store = stores.of(root).map_err(Error::from_lower)?;
    // The URL of a web server may write a key in another way than its listing.
    let folder = store.canonical_key(&root.key).map_err(Error::from_lower)?;
    let mut found = ListedClasses::default();
    let (mut listed, mut is_awaited, mut foreign) = (0, true, None);
    let listing = store.list(&root.key, None, |event| {
        let object = match event {
            ListEvent::Object(object) => object,
            ListEvent::Unreadable(key) => {
                if let Some(below) = below(&key, &folder) {
                    found.leave_out(below, &store.url(&key), kind);
                    listed += 1;
                }
                return ControlFlow::Continue(());
            }
            ListEvent::Restarted => {
                (found, listed) = (ListedClasses::default(), 0);
                return ControlFlow::Continue(());
            }
        };
        let Some(below) = below(&object.key, &folder) else {
            foreign = Some(object.key);
            return ControlFlow::Break(());
        };
        let class = below.split_once('/').map(|(class, _)| class.to_owned());
        found.add(class, object, kind);
        listed += 1;
        if listed % TELL_EVERY == 0 && !goes_on(listed) {
            is_awaited = false;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    listing.map_err(Error::from_lower)?;
    if let Some(key) = foreign {
        return Err(invalid(format!(
            "the listing of {root} has {}, which is not in this folder",
            store.url(&key)
        ))
        .with_remedy("see how the server lists this folder, or give coprep.Files the URLs"));
    }
    if !is_awaited {
        return Err(invalid(format!(
            "nobody waits for the listing of {root} any more"
        )));
    }
    if listed == 0 {
        return Err(invalid(format!("there is nothing in {root}"))
            .with_remedy("check the bucket and the folder in the URL"));
    }
    let note = found.left_out.note(&root.to_string());
    let dataset = found.into_dataset(root, &store, kind);
    dataset.map_err(|e| note.into_iter().fold(e, Error::with_remedy))
}

/// Returns the part of a key after a folder, or `None` if the object does not lie there.
fn below<'a>(key: &'a str, folder: &str) -> Option<&'a str> {
    let rest = key.strip_prefix(folder)?;
    // The object of the folder itself is its marker.
    if rest.is_empty() || folder.is_empty() {
        return Some(rest);
    }
    rest.strip_prefix('/')
}

/// The objects below a prefix, by class.
#[derive(Default)]
struct ListedClasses {
    /// The samples of each class: folder, name and object.
    classes: BTreeMap<String, Vec<ListedSample>>,
    ignored: u64,
    left_out: LeftOut,
}

struct ListedSample {
    folder: String,
    object: ListedObject,
}

impl ListedSample {
    fn name(&self) -> &str {
        &self.object.key[self.folder.len()..]
    }
}

impl ListedClasses {
    fn add(&mut self, class: Option<String>, object: ListedObject, kind: &FolderKind) {
        // An object beside the class folders, or the root itself, is no sample.
        let Some(class) = class else {
            return;
        };
        // A folder without samples is noted too, since it is refused as a local one is.
        let samples = self.classes.entry(class).or_default();
        let (folder, name) = object.key.rsplit_once('/').unwrap_or(("", &object.key));
        match kind.of(name.as_bytes()) {
            Kind::Sample => {
                let folder = folder.to_owned();
                samples.push(ListedSample { folder, object });
            }
            Kind::NotDecoded => self.ignored += 1,
            Kind::Other => {}
        }
    }

    /// Notes an object whose key cannot be read. `below` is the key within the folder of the dataset.
    fn leave_out(&mut self, below: &str, url: &str, kind: &FolderKind) {
        let (class, name) = below.split_once('/').unwrap_or_default();
        if !matches!(kind.of(name.as_bytes()), Kind::Sample) {
            return;
        }
        self.left_out.add(1, || {
            format!(
                "{url} cannot be asked for: a key must have no empty part, no part . or .., and no control character"
            )
        });
        // Without its class, a folder of such samples would be left out in silence, and later classes have other labels.
        let is_readable = !matches!(class, "" | "." | "..") && !class.contains(char::is_control);
        if is_readable {
            self.classes.entry(class.to_owned()).or_default();
        }
    }

    fn into_dataset(
        self,
        root: &DatasetUrl,
        store: &Arc<RemoteStore>,
        kind: &FolderKind,
    ) -> Result<Dataset, Error> {
        if self.classes.is_empty() {
            return Err(no_classes(root, kind));
        }
        let empty = self
            .classes
            .iter()
            .filter(|(_, samples)| samples.is_empty());
        let empty: Vec<&String> = empty.map(|(class, _)| class).collect();
        refuse_empty(&root.to_string(), &empty, kind)?;
        let mut dataset = Dataset::rooted(std::path::Path::new(""));
        dataset.ignored = self.ignored;
        dataset.left_out = self.left_out;
        for (label, (class, mut samples)) in self.classes.into_iter().enumerate() {
            // Stores order whole keys, and a local folder is ordered by (folder, name).
            samples.sort_by(|a, b| (&a.folder, a.name()).cmp(&(&b.folder, b.name())));
            for ListedSample { object, .. } in samples {
                dataset
                    .objects
                    .push_object(store, &object.key, Some(&object));
                dataset.labels.push(label as i64);
            }
            dataset.classes.push(class);
        }
        Ok(dataset)
    }
}

/// Adds files by path or URL. The stores of URLs are listed for the sizes and ETags of their objects.
pub(super) fn push_files(
    objects: &mut ObjectTable,
    paths: &[String],
    stores: &Stores,
) -> Result<(), Error> {
    let urls = paths
        .iter()
        .map(|path| url(path))
        .collect::<Result<Vec<_>, _>>()?;
    let listed = ListedFiles::find(&urls, stores)?;
    for (path, url) in paths.iter().zip(&urls) {
        match url {
            None => objects.push_file(&[&bytes_of(path)]),
            Some(url) => {
                let store = stores.of(url).map_err(Error::from_lower)?;
                objects.push_object(&store, &url.key, listed.get(url));
            }
        }
    }
    Ok(())
}

/// The objects that a list of URLs names, as far as their stores can be listed.
#[derive(Default)]
struct ListedFiles<'a>(BTreeMap<(String, &'a str), ListedObject>);

impl<'a> ListedFiles<'a> {
    fn find(urls: &'a [Option<DatasetUrl>], stores: &Stores) -> Result<Self, Error> {
        let mut by_store: BTreeMap<String, Vec<&DatasetUrl>> = BTreeMap::new();
        for url in urls.iter().flatten() {
            by_store.entry(url.store()).or_default().push(url);
        }
        let mut found = ListedFiles::default();
        for (name, urls) in by_store {
            let store = stores.of(urls[0]).map_err(Error::from_lower)?;
            if !store.is_listable() {
                continue;
            }
            let mut keys: Vec<&str> = urls.iter().map(|url| url.key.as_str()).collect();
            keys.sort_unstable();
            keys.dedup();
            let listed = store.look_up(&keys).map_err(Error::from_lower)?;
            let listed = keys.into_iter().zip(listed);
            found
                .0
                .extend(listed.filter_map(|(key, object)| Some(((name.clone(), key), object?))));
        }
        Ok(found)
    }

    fn get(&self, url: &'a DatasetUrl) -> Option<&ListedObject> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(url.store(), url.key.as_str()))
    }
}
