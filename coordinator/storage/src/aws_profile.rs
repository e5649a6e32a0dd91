//! Profiles of Amazon's tools: credentials, region and address of S3 in the files under `~/.aws`.
//!
//! A profile has keys, or names a program that prints temporary ones ([`CredentialProcess`]). Other ways to sign in, such
//! as single sign-on, are left to such a program: `aws configure export-credentials --format process` knows them all.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use configparser::ini::{Ini, IniDefault};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::{Result, StaticCredentialProvider};

use crate::credential_process::CredentialProcess;
use crate::file::read_text;
use crate::headers;
use crate::variables::Variables;

/// Beginnings of settings by which a profile signs in, if it has neither keys nor a program.
const OTHER_WAYS: [&str; 5] = [
    "sso_",
    "role_arn",
    "source_profile",
    "credential_source",
    "web_identity_token_file",
];

/// A profile of the user.
pub(crate) struct AwsProfile {
    name: String,
    settings: BTreeMap<String, String>,
}

/// The way in which a profile gives credentials.
enum Way<'a> {
    Keys(AwsCredential),
    Program(&'a str),
    /// A setting of this name, which is not supported.
    Other(&'a str),
    /// The profile has no credentials, only other settings.
    None,
}

impl AwsProfile {
    /// Reads the profile that `AWS_PROFILE` names, or else the default one. Returns `None` if there is no default one.
    pub(crate) fn read(variables: &Variables) -> Result<Option<AwsProfile>> {
        let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]
            .iter()
            .find_map(|name| variables.value(name).filter(|name| !name.is_empty()));
        let name = named.as_deref().unwrap_or("default");
        let files = [
            ("AWS_CONFIG_FILE", "config"),
            ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ];
        let mut is_there = false;
        let mut settings = BTreeMap::new();
        let mut searched = Vec::new();
        for (variable, usual) in files {
            let Some(path) = file(variable, usual, variables) else {
                continue;
            };
            let Some(content) = parsed(&path, variable)? else {
                continue;
            };
            // Both files may have the profile. The one with the credentials comes last, so that it decides.
            for section in [format!("profile {name}"), name.to_owned()] {
                if let Some(found) = content.get(&section) {
                    is_there = true;
                    let given = found.iter().filter_map(|(k, v)| Some((k, v.clone()?)));
                    settings.extend(given.map(|(k, v)| (k.to_lowercase(), v)));
                }
            }
            searched.push(path.display().to_string());
        }
        if is_there {
            return Ok(Some(AwsProfile {
                name: name.to_owned(),
                settings,
            }));
        }
        match named {
            None => Ok(None),
            Some(name) if searched.is_empty() => Err(error(format!(
                "AWS_PROFILE names the profile {name}, and there are no files with profiles"
            ))),
            Some(name) => Err(error(format!(
                "AWS_PROFILE names the profile {name}, which is not in {}",
                searched.join(" or ")
            ))),
        }
    }

    /// Returns where the credentials come from, in words, or `None` if the profile has none.
    pub(crate) fn describe(&self) -> Option<String> {
        let how = match self.way() {
            Way::Keys(_) => "",
            Way::Program(_) => ", by its credential_process",
            Way::Other(_) => ", by a way that is not supported",
            Way::None => return None,
        };
        Some(format!("the profile {}{how}", self.name))
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn way(&self) -> Way<'_> {
        let keys = ["aws_access_key_id", "aws_secret_access_key"].map(|name| self.setting(name));
        if let [Some(key), Some(secret)] = keys {
            return Way::Keys(AwsCredential {
                key_id: key.to_owned(),
                secret_key: secret.to_owned(),
                token: self.setting("aws_session_token").map(str::to_owned),
            });
        }
        if let Some(command) = self.setting("credential_process") {
            return Way::Program(command);
        }
        let is_other = |name: &&String| OTHER_WAYS.iter().any(|way| name.starts_with(way));
        let other = self.settings.keys().find(is_other);
        other.map_or(Way::None, |name| Way::Other(name))
    }

    /// Adds what the profile says and the environment does not.
    pub(crate) fn apply(
        &self,
        builder: AmazonS3Builder,
        variables: &Variables,
    ) -> Result<AmazonS3Builder> {
        type Check = fn(&str, &str) -> Result<(), String>;
        let also: [(&str, AmazonS3ConfigKey, Check); 2] = [
            ("region", AmazonS3ConfigKey::Region, headers::check),
            (
                "endpoint_url",
                AmazonS3ConfigKey::Endpoint,
                headers::check_address,
            ),
        ];
        let of_profile = |why| error(format!("the profile {}: {why}", self.name));
        let mut builder = builder;
        for (name, key, check) in also {
            if let Some(value) = self.setting(name)
                && builder.get_config_value(&key).is_none()
            {
                check(name, value).map_err(of_profile)?;
                builder = builder.with_config(key, value);
            }
        }
        match self.way() {
            Way::Keys(keys) => {
                headers::check_keys(&keys).map_err(of_profile)?;
                Ok(builder.with_credentials(Arc::new(StaticCredentialProvider::new(keys))))
            }
            Way::Program(command) => {
                let program = CredentialProcess::new(&self.name, command, variables);
                Ok(builder.with_credentials(Arc::new(program)))
            }
            Way::Other(setting) => Err(error(format!(
                "the profile {0} signs in by {setting}, which is left to a program: write a profile with \
                 credential_process = aws configure export-credentials --profile {0} --format process, and name that \
                 one in AWS_PROFILE",
                self.name
            ))),
            Way::None => Ok(builder),
        }
    }
}

/// Settings by the names of their sections.
type Sections = HashMap<String, HashMap<String, Option<String>>>;

/// Returns the path of a file with profiles: that of a variable, or the usual one.
fn file(variable: &str, usual: &str, variables: &Variables) -> Option<PathBuf> {
    if let Some(path) = variables.value(variable) {
        return Some(path.into());
    }
    let home = variables.value("HOME").map(PathBuf::from)?;
    Some(home.join(".aws").join(usual))
}

/// Returns the content of a file with profiles, or `None` if there is no such file. `variable` may name it.
fn parsed(path: &Path, variable: &str) -> Result<Option<Sections>> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            let path = path.display();
            let text = format!("{path} ({variable}) cannot be read: {e}");
            return Err(error(text));
        }
    };
    let mut rules = IniDefault::default();
    rules.delimiters = vec!['='];
    // A secret may hold the symbols of comments.
    rules.enable_inline_comments = false;
    // Names of profiles differ in their case too.
    rules.case_sensitive = true;
    let mut content = Ini::new_from_defaults(rules);
    // The parser's message could repeat a line with a secret.
    let read = content.read(text).map_err(|_| {
        let path = path.display();
        error(format!(
            "{path} is not made of [sections] with lines name = value"
        ))
    })?;
    Ok(Some(read))
}

fn error(text: String) -> object_store::Error {
    object_store::Error::Generic {
        store: "S3",
        source: text.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const CONFIG: &str = "\
        # a comment\n\
        [default]\nregion = eu-west-1\n\
        [profile keys]\nregion = eu-north-1\nendpoint_url = http://127.0.0.1:1\ns3 =\n  max_concurrent_requests = 20\n\
        [profile sso]\nsso_session = x\n\
        [profile program]\ncredential_process = cat \"/a b/c\"\n";
    const CREDENTIALS: &str =
        "[keys]\naws_access_key_id = KEY\naws_secret_access_key = a\\b\"c#d;e\n";

    fn read(name: &str, config: &str, credentials: &str) -> Result<Option<AwsProfile>, String> {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["config", "credentials"].map(|name| folder.path().join(name));
        fs::write(&paths[0], config).unwrap();
        fs::write(&paths[1], credentials).unwrap();
        let mut variables = Variables::default();
        variables.set("AWS_PROFILE", name);
        for (variable, path) in ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"]
            .into_iter()
            .zip(&paths)
        {
            variables.set(variable, path.to_str().unwrap());
        }
        AwsProfile::read(&variables).map_err(|e| e.to_string())
    }

    #[test]
    fn a_profile_has_what_both_files_say_of_it() {
        let profile = read("keys", CONFIG, CREDENTIALS).unwrap().unwrap();
        let Way::Keys(keys) = profile.way() else {
            panic!("it has keys");
        };
        assert_eq!((&*keys.key_id, &*keys.secret_key), ("KEY", "a\\b\"c#d;e"));
        assert_eq!(profile.describe().unwrap(), "the profile keys");
        let builder = profile
            .apply(AmazonS3Builder::new(), &Variables::default())
            .unwrap();
        let setting = |key| builder.get_config_value(&key);
        assert_eq!(setting(AmazonS3ConfigKey::Region).unwrap(), "eu-north-1");
        assert_eq!(
            setting(AmazonS3ConfigKey::Endpoint).unwrap(),
            "http://127.0.0.1:1"
        );
        // The environment comes first.
        let builder = AmazonS3Builder::new().with_region("us-east-2");
        let builder = profile.apply(builder, &Variables::default()).unwrap();
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        assert_eq!(region.unwrap(), "us-east-2");
    }

    #[test]
    fn without_a_name_it_is_the_default_one_which_may_lack_credentials() {
        let profile = read("", CONFIG, CREDENTIALS).unwrap().unwrap();
        assert_eq!(profile.describe(), None);
        assert!(read("", "", "").unwrap().is_none());
    }

    #[test]
    fn a_profile_that_cannot_be_used_is_an_error_with_a_remedy() {
        let absent = read("absent", CONFIG, CREDENTIALS).err().unwrap();
        assert!(
            absent.contains("the profile absent, which is not in /"),
            "{absent}"
        );
        let broken = read("keys", "[profile keys\nkey = HIDDEN\n", "")
            .err()
            .unwrap();
        assert!(
            broken.contains("is not made of [sections]") && !broken.contains("HIDDEN"),
            "{broken}"
        );
        let sso = read("sso", CONFIG, CREDENTIALS).unwrap().unwrap();
        let error = sso
            .apply(AmazonS3Builder::new(), &Variables::default())
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("signs in by sso_session")
                && error
                    .contains("aws configure export-credentials --profile sso --format process"),
            "{error}"
        );
    }

    #[test]
    fn a_program_is_named_as_it_is_written() {
        let profile = read("program", CONFIG, "").unwrap().unwrap();
        assert!(matches!(profile.way(), Way::Program("cat \"/a b/c\"")));
    }
}
