//! The variables of a job's environment that describe the stores of its dataset: credentials, regions and addresses.
//!
//! They may be secrets. They pass from a job to the coordinator over a socket that only their user can open, and stay in
//! memory there. Nobody prints, hashes or writes them: [`StoreVariables`] shows their names alone.

use std::ffi::OsString;
use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use crate::dataset_url::UrlScheme;
use crate::spec::Source;

/// Variables of a store, as a rule for their names.
struct VariableNames {
    scheme: UrlScheme,
    /// Beginnings of names.
    beginnings: &'static [&'static str],
    /// Whole names.
    names: &'static [&'static str],
}

/// The variables that are read for each kind of store. Other variables change nothing, and so keep no jobs apart.
///
/// `HOME` is among them, because profiles, tokens and other credentials lie in files below it.
const VARIABLES: [VariableNames; 4] = [
    VariableNames {
        scheme: UrlScheme::S3,
        // A program that prints credentials may read any of them.
        beginnings: &["AWS_"],
        names: &["HOME"],
    },
    VariableNames {
        scheme: UrlScheme::Gs,
        beginnings: &["GOOGLE_"],
        names: &["SERVICE_ACCOUNT", "HOME"],
    },
    VariableNames {
        scheme: UrlScheme::Az,
        beginnings: &["AZURE_", "AZURITE_"],
        names: &[],
    },
    VariableNames {
        scheme: UrlScheme::Hf,
        // Most variables that begin with `HF_` are for libraries of Hugging Face, and often differ between jobs.
        beginnings: &[],
        names: &[
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_ENDPOINT",
            "HF_TOKEN_PATH",
            "HF_HOME",
            "XDG_CACHE_HOME",
            "HOME",
        ],
    },
];

/// The settings of each kind of store that are no credentials, as names of variables without their `prefix`. They remain
/// where a job gives the credentials itself. All others must not keep such jobs apart: each job may have keys of its own in
/// its environment, too.
struct SettingNames {
    scheme: UrlScheme,
    prefix: &'static str,
    names: &'static [&'static str],
}

const SETTINGS: [SettingNames; 4] = [
    SettingNames {
        scheme: UrlScheme::S3,
        prefix: "AWS_",
        names: &[
            "REGION",
            "DEFAULT_REGION",
            "ENDPOINT_URL_S3",
            "ENDPOINT_URL",
            "ENDPOINT",
            "VIRTUAL_HOSTED_STYLE_REQUEST",
            "S3_EXPRESS",
            "REQUEST_PAYER",
            "UNSIGNED_PAYLOAD",
            // Objects that the user has encrypted are read with these.
            "SERVER_SIDE_ENCRYPTION",
            "SSE_KMS_KEY_ID",
            "SSE_BUCKET_KEY_ENABLED",
            "SSE_CUSTOMER_KEY_BASE64",
        ],
    },
    SettingNames {
        scheme: UrlScheme::Gs,
        prefix: "GOOGLE_",
        names: &["BASE_URL"],
    },
    SettingNames {
        scheme: UrlScheme::Az,
        prefix: "AZURE_",
        names: &[
            "STORAGE_ACCOUNT_NAME",
            "STORAGE_ENDPOINT",
            "ENDPOINT",
            "STORAGE_USE_EMULATOR",
            "STORAGE_ENCRYPTION_KEY",
            "USE_FABRIC_ENDPOINT",
        ],
    },
    SettingNames {
        scheme: UrlScheme::Hf,
        prefix: "HF_",
        names: &["ENDPOINT"],
    },
];

/// The address of Azure's emulator, which is a setting with a prefix of its own.
const EMULATOR_ADDRESS: &str = "AZURITE_BLOB_STORAGE_URL";

/// Variables whose values are paths. The coordinator may have another working directory than the job.
const PATHS: [&str; 11] = [
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "SERVICE_ACCOUNT",
    "AZURE_FEDERATED_TOKEN_FILE",
    "HF_TOKEN_PATH",
    "HF_HOME",
];

/// Variables that describe stores, in the order of their names; see the module.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Default)]
pub struct StoreVariables(Vec<(String, String)>);

impl StoreVariables {
    /// Returns the variables of this process's environment that describe the stores of a source. Empty if it has none, or
    /// only web servers.
    #[must_use]
    pub fn of(source: &Source) -> Self {
        StoreVariables::among(std::env::vars_os(), &schemes(source))
    }

    fn among(
        environment: impl Iterator<Item = (OsString, OsString)>,
        schemes: &[UrlScheme],
    ) -> Self {
        let text = |(name, value): (OsString, OsString)| {
            // The clients of stores know texts only.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let is_read = |name: &str| schemes.iter().any(|scheme| is_read_for(*scheme, name));
        environment
            .filter_map(text)
            .filter(|(name, _)| is_read(name))
            .map(|(name, value)| {
                let value = whole_path(&name, value);
                (name, value)
            })
            .collect()
    }

    /// Leaves out all but the settings of stores of this kind, such as regions and addresses, because a job gives the
    /// credentials itself.
    #[must_use]
    pub fn without_credentials(self, scheme: UrlScheme) -> Self {
        let remains = |(name, _): &(String, String)| is_setting(scheme, name);
        StoreVariables(self.0.into_iter().filter(remains).collect())
    }

    /// Sets a setting of a store, by the name that configurations of `object_store` have for it, such as `region`, unless
    /// a variable sets it. Anything but a setting changes nothing.
    pub fn set_default(&mut self, scheme: UrlScheme, name: &str, value: &str) {
        let name = name.to_ascii_uppercase();
        let of_scheme = SETTINGS.iter().find(|settings| settings.scheme == scheme);
        let prefix = of_scheme.map_or("", |settings| settings.prefix);
        // Such a configuration may leave prefixes out, of which Azure has two.
        let names = ["", prefix, "AZURE_STORAGE_"].map(|prefix| format!("{prefix}{name}"));
        let Some(name) = names.iter().find(|name| is_setting(scheme, name)) else {
            return;
        };
        let is_region = name == "AWS_REGION" && self.get("AWS_DEFAULT_REGION").is_some();
        if self.get(name).is_none() && !is_region {
            self.set(name, value);
        }
    }

    /// Returns the value of a variable, or `None` if it is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value.to_owned()));
        self.0.sort_unstable();
    }

    /// Returns the names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns `true` if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, String)> for StoreVariables {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        let mut variables: Vec<(String, String)> = variables.into_iter().collect();
        // A process has its variables in any order, and the same ones must be equal.
        variables.sort_unstable();
        StoreVariables(variables)
    }
}

/// Shows the names only, since values may be secrets.
impl fmt::Debug for StoreVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|(name, _)| name))
            .finish()
    }
}

impl VariableNames {
    fn has(&self, name: &str) -> bool {
        self.beginnings.iter().any(|b| name.starts_with(b)) || self.names.contains(&name)
    }
}

/// Returns `true` if a variable is read for stores of this kind.
#[must_use]
pub fn is_read_for(scheme: UrlScheme, name: &str) -> bool {
    let of_scheme = VARIABLES
        .iter()
        .find(|variables| variables.scheme == scheme);
    of_scheme.is_some_and(|variables| variables.has(name))
}

/// Returns `true` if a variable is a setting of stores of this kind that is no credential.
fn is_setting(scheme: UrlScheme, name: &str) -> bool {
    let is_emulator = scheme == UrlScheme::Az && name == EMULATOR_ADDRESS;
    let has = |settings: &SettingNames| {
        let rest = name.strip_prefix(settings.prefix);
        settings.scheme == scheme && rest.is_some_and(|rest| settings.names.contains(&rest))
    };
    is_emulator || SETTINGS.iter().any(has)
}

/// Returns the kind of stores that the credentials of a job's own provider are for.
///
/// # Errors
/// If the source does not lie in stores of one kind that take credentials.
pub fn provided_scheme(source: &Source) -> Result<UrlScheme, String> {
    if let Source::TarShards(shards) = source
        && let Some(list) = shards.list()
    {
        return Err(format!(
            "credential_provider: {list} names shards that may lie in any store: name the shards themselves"
        ));
    }
    let mut found = schemes(source);
    found.retain(|scheme| !scheme.is_http());
    match found[..] {
        [scheme] => Ok(scheme),
        [] => Err(
            "credential_provider is for URLs that begin with s3://, gs://, az:// or hf://, and there is none: leave it out"
                .into(),
        ),
        [one, other, ..] => Err(format!(
            "credential_provider gives credentials for one kind of store, and there are URLs of {}:// and {}://: make two \
             datasets, or set the variables of one of the stores",
            one.as_str(),
            other.as_str()
        )),
    }
}

/// Returns the value of a variable, as an absolute path if it is a path.
fn whole_path(name: &str, value: String) -> String {
    if !PATHS.contains(&name) || value.is_empty() {
        return value;
    }
    // Without a working directory, the path stays as it is.
    let whole = std::path::absolute(&value).ok();
    let whole = whole.and_then(|path| path.into_os_string().into_string().ok());
    whole.unwrap_or(value)
}

/// Returns the kinds of stores that a source may lie in.
fn schemes(source: &Source) -> Vec<UrlScheme> {
    if let Source::TarShards(shards) = source
        && shards.list().is_some()
    {
        // The list has not been read yet, and may name shards in any store.
        return VARIABLES.iter().map(|variables| variables.scheme).collect();
    }
    let mut found = Vec::new();
    let texts = source.locations().iter();
    for scheme in texts.filter_map(|text| UrlScheme::of(text)) {
        if !found.contains(&scheme) {
            found.push(scheme);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FileList, TarShards};

    const ENVIRONMENT: [(&str, &str); 8] = [
        ("PATH", "/bin"),
        ("HOME", "/home/me"),
        ("HF_TOKEN", "SECRET"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("AWS_SECRET_ACCESS_KEY", "SECRET"),
        ("AWS_CONFIG_FILE", "config"),
        ("GOOGLE_BASE_URL", "http://SECRET"),
        ("AZURITE_BLOB_STORAGE_URL", "http://SECRET"),
    ];

    fn names_for(source: &Source) -> Vec<String> {
        let environment = ENVIRONMENT.map(|(name, value)| (name.into(), value.into()));
        let variables = StoreVariables::among(environment.into_iter(), &schemes(source));
        variables.iter().map(|(name, _)| name.to_owned()).collect()
    }

    fn folder(root: &str) -> Source {
        Source::ImageFolder { root: root.into() }
    }

    #[test]
    fn a_source_has_the_variables_of_its_stores_and_no_others() {
        assert!(names_for(&folder("/data")).is_empty());
        assert!(names_for(&folder("https://host/x")).is_empty());
        assert_eq!(
            names_for(&folder("s3://bucket/x")),
            ["AWS_CONFIG_FILE", "AWS_SECRET_ACCESS_KEY", "HOME"]
        );
        assert_eq!(
            names_for(&folder("hf://datasets/o/n")),
            ["HF_TOKEN", "HOME"]
        );
        let mixed = Source::Files(FileList {
            paths: ["/a.jpg", "gs://b/a.jpg", "az://c/a.jpg"]
                .map(String::from)
                .to_vec(),
            labels: Vec::new(),
        });
        assert_eq!(
            names_for(&mixed),
            ["AZURITE_BLOB_STORAGE_URL", "GOOGLE_BASE_URL", "HOME"]
        );
    }

    #[test]
    fn a_list_of_shards_may_lie_in_any_store() {
        let of = |shard: &str| {
            names_for(&Source::TarShards(TarShards {
                shards: vec![shard.into()],
                ..TarShards::default()
            }))
        };
        assert_eq!(of("/data/index.json").len(), 6);
        assert!(of("/data/train.tar").is_empty());
    }

    #[test]
    fn a_path_means_the_same_in_every_directory() {
        let environment = ENVIRONMENT.map(|(name, value)| (name.into(), value.into()));
        let variables = StoreVariables::among(environment.into_iter(), &[UrlScheme::S3]);
        let here = std::env::current_dir().unwrap().join("config");
        assert_eq!(variables.get("AWS_CONFIG_FILE"), here.to_str());
    }

    #[test]
    fn the_settings_remain_where_a_job_gives_the_credentials() {
        let environment = [
            ("AWS_REGION", "here"),
            ("AWS_ENDPOINT_URL", "http://host"),
            ("AWS_SESSION_TOKEN", "SECRET"),
            ("AWS_PROFILE", "mine"),
            ("AWS_SKIP_SIGNATURE", "true"),
            ("HOME", "/home/me"),
        ];
        let owned = environment.map(|(name, value)| (name.into(), value.into()));
        let variables = StoreVariables::among(owned.into_iter(), &[UrlScheme::S3]);
        let mut settings = variables.without_credentials(UrlScheme::S3);
        settings.set_default(UrlScheme::S3, "region", "there");
        settings.set_default(UrlScheme::S3, "aws_request_payer", "true");
        settings.set_default(UrlScheme::S3, "secret_access_key", "SECRET");
        let all: Vec<_> = settings.iter().collect();
        let mut azure = StoreVariables::default();
        azure.set_default(UrlScheme::Az, "account_name", "mine");
        assert_eq!(azure.get("AZURE_STORAGE_ACCOUNT_NAME"), Some("mine"));
        let expected = [
            ("AWS_ENDPOINT_URL", "http://host"),
            ("AWS_REGION", "here"),
            ("AWS_REQUEST_PAYER", "true"),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_provider_is_for_one_kind_of_store() {
        let of = |paths: &[&str]| {
            provided_scheme(&Source::Files(FileList {
                paths: paths.iter().map(|path| (*path).into()).collect(),
                labels: Vec::new(),
            }))
        };
        assert_eq!(
            of(&["/a.jpg", "s3://b/a.jpg", "https://c/a.jpg"]),
            Ok(UrlScheme::S3)
        );
        assert!(
            of(&["/a.jpg", "http://c/a.jpg"])
                .unwrap_err()
                .contains("leave it out")
        );
        assert!(
            of(&["gs://b/a", "az://b/a"])
                .unwrap_err()
                .contains("gs:// and az://")
        );
        let list = Source::TarShards(TarShards {
            shards: vec!["s3://b/index.json".into()],
            ..TarShards::default()
        });
        assert!(
            provided_scheme(&list)
                .unwrap_err()
                .contains("name the shards")
        );
    }

    #[test]
    fn values_are_not_shown() {
        let mut variables = StoreVariables::default();
        variables.set("HF_TOKEN", "SECRET");
        variables.set("AWS_REGION", "SECRET");
        assert_eq!(format!("{variables:?}"), r#"["AWS_REGION", "HF_TOKEN"]"#);
    }
}
