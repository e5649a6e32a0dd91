//! Variables that describe stores: those of the environment, and others that come first.

/// Variables beside those of the process's environment.
pub(crate) type Variables = Vec<(String, String)>;

/// Returns the value of a variable: one of `variables`, or of the environment.
pub(crate) fn value(name: &str, variables: &Variables) -> Option<String> {
    let given = variables.iter().find(|(known, _)| known == name);
    given
        .map(|(_, value)| value.clone())
        .or_else(|| std::env::var(name).ok())
}
