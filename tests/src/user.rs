//! The account under which database servers run.

use std::path::Path;

/// An account of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// The account for a server that refuses to run as root: `None` when the tests do not run as
    /// root, else the preferred account, or `nobody`.
    ///
    /// # Panics
    ///
    /// When the tests run as root on a machine that has neither account.
    pub(crate) fn unprivileged(preferred: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let accounts = std::fs::read_to_string("/etc/passwd").expect("read /etc/passwd");
        let user = find(&accounts, preferred).or_else(|| find(&accounts, "nobody"));
        Some(user.unwrap_or_else(|| panic!("neither {preferred} nor nobody in /etc/passwd")))
    }

    /// Gives a file or an empty directory to the account.
    pub(crate) fn own(self, path: &Path) {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .unwrap_or_else(|error| panic!("chown {}: {error}", path.display()));
    }
}

fn find(accounts: &str, name: &str) -> Option<User> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(User { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let accounts = "postgres2:x:7:8::/:\npostgres:x:101:104::/:/bin/bash\n";
        assert_eq!(
            find(accounts, "postgres"),
            Some(User { uid: 101, gid: 104 })
        );
        assert_eq!(find(accounts, "mysql"), None);
    }
}
