//! Reads from the sources of a crate which of its modules import which.
//!
//! A module imports another one if its code names it, or an item of it: in a `use` declaration, in a path such as
//! `crate::a::b::f()`, or among the tokens of a macro. An item that a module only passes on (`pub use`) counts for the
//! module that defines it as well, so that a detour through the parent hides nothing. Calls of methods do not count,
//! because they name neither the type nor the file of its `impl` block.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Macro, UseTree};

/// Names of a module and of its parents, from the outermost. The root of the crate has none.
pub(crate) type ModulePath = Vec<String>;

/// Largest number of `use` declarations that a name is followed through. Sources that compile need few; the bound ends
/// the search for names of other crates, which may lead in a circle of globs.
const MOST_STEPS: usize = 8;

/// The modules of a crate.
#[derive(Default)]
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

#[derive(Default)]
struct Module {
    /// Names of the items that the module defines.
    items: BTreeSet<String>,
    /// Names that its `use` declarations bring into scope, with the path of each.
    names: BTreeMap<String, Vec<String>>,
    /// Paths whose names its `use` declarations bring into scope together.
    globs: Vec<Vec<String>>,
    /// All paths that its code has.
    paths: Vec<Vec<String>>,
}

/// The modules that a path leads through.
struct Found {
    /// Modules on the way.
    passed: BTreeSet<ModulePath>,
    /// Module at the end.
    module: ModulePath,
    /// `true` if the path ends at an item of the module, not at the module itself.
    is_item: bool,
}

impl Modules {
    /// Reads the crate whose root is `file`.
    pub(crate) fn read(file: &Path) -> Self {
        Self::read_by(file, &|file| std::fs::read_to_string(file).ok())
    }

    /// Reads the crate whose root is `file`. `source` returns the text of a file, or `None` if there is no such file.
    fn read_by(file: &Path, source: &dyn Fn(&Path) -> Option<String>) -> Self {
        let mut modules = Modules::default();
        let mut reader = Reader {
            source,
            modules: &mut modules,
            at: ModulePath::new(),
            file: file.to_owned(),
            folder: file.parent().unwrap().to_owned(),
        };
        reader.read_file();
        modules
    }

    /// Returns the modules of the crate.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &ModulePath> {
        self.0.keys()
    }

    /// Returns which module imports which.
    pub(crate) fn imports(&self) -> BTreeSet<(ModulePath, ModulePath)> {
        let mut imports = BTreeSet::new();
        for (at, module) in &self.0 {
            for path in &module.paths {
                let found = self.resolve(at, path, MOST_STEPS);
                let targets = found.map(|found| found.passed).unwrap_or_default();
                imports.extend(targets.into_iter().map(|target| (at.clone(), target)));
            }
        }
        imports
    }

    /// Returns the imports between siblings that lie on a circle, or between two circles. A module and the modules in
    /// it may import each other.
    pub(crate) fn circles(&self) -> BTreeSet<String> {
        let mut imports: Vec<_> = self
            .imports()
            .into_iter()
            .filter_map(|(from, to)| Some((siblings(&from, &to)?, from, to)))
            .collect();
        // Modules that import no sibling, and modules that no sibling imports, are on no circle.
        loop {
            let before = imports.len();
            let sources: BTreeSet<_> = imports.iter().map(|((from, _), ..)| from.clone()).collect();
            let targets: BTreeSet<_> = imports.iter().map(|((_, to), ..)| to.clone()).collect();
            imports.retain(|((from, to), ..)| targets.contains(from) && sources.contains(to));
            if imports.len() == before {
                break;
            }
        }
        imports
            .into_iter()
            .map(|(_, from, to)| format!("{} imports {}", from.join("::"), to.join("::")))
            .collect()
    }

    /// Follows a path as code in the module `at` has it. Returns `None` if it leads to another crate.
    fn resolve(&self, at: &[String], path: &[String], steps: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::module(Vec::new()),
            "self" => Found::module(at.to_owned()),
            "super" => Found::module(parent(at)),
            name => self.find(at, name, steps)?,
        };
        for name in rest {
            // The names behind an item are its variants, functions and the like.
            if found.is_item {
                break;
            }
            let next = match name.as_str() {
                "super" => Found::module(parent(&found.module)),
                name => self
                    .find(&found.module, name, steps)
                    .unwrap_or_else(|| Found::item(found.module)),
            };
            found.passed.extend(next.passed);
            found.module = next.module;
            found.is_item = next.is_item;
        }
        Some(found)
    }

    /// Finds a name in a module. Returns `None` if it is not known there, or comes from another crate.
    fn find(&self, at: &[String], name: &str, steps: usize) -> Option<Found> {
        let steps = steps.checked_sub(1)?;
        let child = [at, &[name.to_owned()]].concat();
        if self.0.contains_key(&child) {
            return Some(Found::module(child));
        }
        let module = self.0.get(at)?;
        if module.items.contains(name) {
            return Some(Found::item(at.to_owned()));
        }
        if let Some(path) = module.names.get(name) {
            return self.resolve(at, path, steps);
        }
        module.globs.iter().find_map(|glob| {
            let from = self.resolve(at, glob, steps)?;
            if from.is_item {
                return None;
            }
            let mut found = self.find(&from.module, name, steps)?;
            found.passed.extend(from.passed);
            Some(found)
        })
    }
}

impl Found {
    fn module(module: ModulePath) -> Self {
        Found {
            passed: BTreeSet::from([module.clone()]),
            module,
            is_item: false,
        }
    }

    fn item(module: ModulePath) -> Self {
        Found {
            is_item: true,
            ..Found::module(module)
        }
    }
}

fn parent(module: &[String]) -> ModulePath {
    module[..module.len().saturating_sub(1)].to_owned()
}

/// Returns the modules of one parent in which the two modules lie. Returns `None` if one of the two lies in the other.
fn siblings(a: &[String], b: &[String]) -> Option<(ModulePath, ModulePath)> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let is_inside = common == a.len() || common == b.len();
    (!is_inside).then(|| (a[..=common].to_owned(), b[..=common].to_owned()))
}

/// Walks the sources of a crate, module by module.
struct Reader<'a> {
    source: &'a dyn Fn(&Path) -> Option<String>,
    modules: &'a mut Modules,
    /// The module that is being read, its file, and the folder of the modules in it.
    at: ModulePath,
    file: PathBuf,
    folder: PathBuf,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.modules.0.entry(self.at.clone()).or_default()
    }

    fn read_file(&mut self) {
        let text = (self.source)(&self.file);
        let text = text.unwrap_or_else(|| panic!("cannot read {}", self.file.display()));
        let parsed = syn::parse_file(&text);
        let parsed = parsed.unwrap_or_else(|e| panic!("{}: {e}", self.file.display()));
        self.read_items(&parsed.items);
    }

    fn read_items(&mut self, items: &[Item]) {
        let module = self.module();
        for item in items {
            match item {
                Item::Use(item) => module.bring_in(&item.tree),
                item => module.items.extend(name(item)),
            }
        }
        items.iter().for_each(|item| self.visit_item(item));
    }

    /// Returns the file of a module that is declared without its content, and the folder of the modules in it.
    fn locate(&self, declared: &ItemMod) -> (PathBuf, PathBuf) {
        let parent = |file: &Path| file.parent().unwrap().to_owned();
        if let Some(path) = path_attribute(declared) {
            let file = parent(&self.file).join(path);
            return (file.clone(), parent(&file));
        }
        let name = declared.ident.to_string();
        let folder = self.folder.join(&name);
        let file = self.folder.join(name + ".rs");
        let exists = (self.source)(&file).is_some();
        let file = if exists { file } else { folder.join("mod.rs") };
        (file, folder)
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, declared: &'ast ItemMod) {
        let (file, folder) = (self.file.clone(), self.folder.clone());
        self.at.push(declared.ident.to_string());
        if let Some((_, items)) = &declared.content {
            self.folder.push(declared.ident.to_string());
            self.read_items(items);
        } else {
            (self.file, self.folder) = self.locate(declared);
            self.read_file();
        }
        self.at.pop();
        (self.file, self.folder) = (file, folder);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let paths = leaves(&item.tree).into_iter().map(|leaf| leaf.path);
        self.module().paths.extend(paths);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|s| s.ident.to_string());
        self.module().paths.push(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let module = self.module();
        paths_in(called.tokens.clone(), &mut module.paths);
        visit::visit_macro(self, called);
    }
}

/// A name that a `use` declaration brings into scope.
struct Leaf {
    path: Vec<String>,
    /// The name, or `None` if these are all names at the path.
    name: Option<String>,
}

impl Module {
    fn bring_in(&mut self, tree: &UseTree) {
        for Leaf { path, name } in leaves(tree) {
            if let Some(name) = name {
                self.names.entry(name).or_insert(path);
            } else {
                self.globs.push(path);
            }
        }
    }
}

fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let leaf = |path: String, name: String| {
        vec![Leaf {
            path: vec![path],
            name: Some(name),
        }]
    };
    match tree {
        UseTree::Path(inner) => {
            let mut found = leaves(&inner.tree);
            for leaf in &mut found {
                let name = inner.ident.to_string();
                // `use a::{self}` brings in `a`.
                if leaf.path == ["self"] {
                    leaf.path.clear();
                    leaf.name = leaf
                        .name
                        .take()
                        .map(|own| if own == "self" { name.clone() } else { own });
                }
                leaf.path.insert(0, name);
            }
            found
        }
        UseTree::Name(last) => leaf(last.ident.to_string(), last.ident.to_string()),
        UseTree::Rename(last) => leaf(last.ident.to_string(), last.rename.to_string()),
        UseTree::Glob(_) => vec![Leaf {
            path: Vec::new(),
            name: None,
        }],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

/// Returns the name that an item defines in its module. The name of a module is known from the module itself.
fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Returns the value of a `#[path = "..."]` attribute.
fn path_attribute(declared: &ItemMod) -> Option<String> {
    let is_path = |a: &&syn::Attribute| a.path().is_ident("path");
    let attribute = declared.attrs.iter().find(is_path)?;
    let syn::Meta::NameValue(meta) = &attribute.meta else {
        return None;
    };
    let syn::Expr::Lit(syn::ExprLit {
        lit: syn::Lit::Str(text),
        ..
    }) = &meta.value
    else {
        return None;
    };
    Some(text.value())
}

/// Adds the paths among the tokens of a macro, which are not parsed.
fn paths_in(tokens: TokenStream, paths: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Ident(name) => {
                if colons != 2 {
                    paths.push(std::mem::take(&mut path));
                }
                path.push(name.to_string());
                colons = 0;
            }
            other => {
                paths.push(std::mem::take(&mut path));
                if let TokenTree::Group(group) = other {
                    paths_in(group.stream(), paths);
                }
            }
        }
    }
    paths.push(path);
}

mod tests {
    use super::*;

    /// Returns the imports that lie on circles in a crate of these files. Its root is `lib.rs`.
    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let source = |file: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == file);
            found.map(|(_, text)| (*text).to_owned())
        };
        let modules = Modules::read_by(Path::new("lib.rs"), &source);
        modules.circles().into_iter().collect()
    }

    /// Returns the imports on circles if `a` imports `b`, and `b` has this code.
    fn circles_with(b: &str) -> Vec<String> {
        let root = "mod a; mod b; mod c; pub use a::Shared;";
        let a = "use crate::b::B; pub struct A; pub struct Shared; pub fn f() {}";
        circles(&[
            ("lib.rs", root),
            ("a.rs", a),
            ("b.rs", b),
            ("c.rs", "pub struct C;"),
        ])
    }

    #[test]
    fn a_circle_is_found_however_the_import_is_written() {
        for b in [
            "use crate::a::A;",
            "use super::a::A;",
            "use self::super::a::{A};",
            "use crate::{c::{C, self}, a::{self, A as Other}};",
            "use crate::a as other;",
            "use crate::a::*;",
            "fn f() { use crate::a::A; }",
            "fn f() { crate::a::f(); }",
            "fn f(a: Option<crate::a::A>) {}",
            "fn f() { assert!(g(1, crate::a::f())); }",
            "use crate::*; fn f() { a::f(); }",
            "use crate::Shared;",
            "mod inner { use super::super::a::A; }",
        ] {
            let found = circles_with(b);
            let names = |line: &String| line.starts_with("b") && line.ends_with(" imports a");
            assert!(found.contains(&"a imports b".to_owned()), "{b}: {found:?}");
            assert!(found.iter().any(names), "{b}: {found:?}");
        }
    }

    #[test]
    fn text_and_names_of_other_crates_are_no_imports() {
        for b in [
            "// use crate::a::A;",
            "/* use crate::a::A; */",
            r#"fn f() { g("crate::a::f()"); }"#,
            "use other::a::A;",
            "use crate::c::C;",
            "use a::A;",
        ] {
            assert_eq!(circles_with(b), Vec::<String>::new(), "{b}");
        }
    }

    #[test]
    fn a_longer_circle_is_found_without_the_modules_that_lead_to_it() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; mod c; mod before; mod behind;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::a::A; use crate::behind::B;"),
            ("before.rs", "use crate::a::A;"),
            ("behind.rs", ""),
        ]);
        assert_eq!(found, ["a imports b", "b imports c", "c imports a"]);
    }

    #[test]
    fn a_folder_is_a_sibling_with_all_that_is_in_it() {
        let found = circles(&[
            ("lib.rs", "mod folder;"),
            ("folder/mod.rs", "mod a; mod b;"),
            ("folder/a.rs", "use crate::folder::b::B;"),
            ("folder/b/mod.rs", "mod inner;"),
            ("folder/b/inner.rs", "use super::super::a::A;"),
        ]);
        let expected = [
            "folder::a imports folder::b",
            "folder::b::inner imports folder::a",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_module_and_the_modules_in_it_may_import_each_other() {
        let found = circles(&[
            ("lib.rs", "mod parent; pub use parent::Parent;"),
            (
                "parent.rs",
                "mod child; use child::Child; pub struct Parent;",
            ),
            ("parent/child.rs", "use super::Parent; pub struct Child;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
