//! Named places between two effects, where a test can kill or freeze its process.
//!
//! The stores and brokers of this workspace name each statement and each message, and tell when it
//! has taken place. Nothing of that is compiled unless the feature `failpoints` is on, which only
//! this workspace's tests do.

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(&str)> = std::sync::OnceLock::new();

/// Calls `hook` with the name of each place that this process passes; the first hook stays.
#[cfg(feature = "failpoints")]
pub fn observe(hook: fn(&str)) {
    let _ = HOOK.set(hook);
}

/// The place after an effect.
#[must_use]
#[derive(Debug)]
pub struct Failpoint {
    #[cfg(feature = "failpoints")]
    name: Option<String>,
}

impl Failpoint {
    /// The place after the effect that `name` names.
    #[cfg(feature = "failpoints")]
    pub fn after(name: impl FnOnce() -> String) -> Self {
        let name = HOOK.get().map(|_| name());
        Self { name }
    }

    /// The place after the effect that `name` names.
    #[cfg(not(feature = "failpoints"))]
    #[inline(always)]
    pub fn after(_name: impl FnOnce() -> String) -> Self {
        Self {}
    }

    /// The effect has taken place.
    #[inline(always)]
    pub fn passed(&self) {
        #[cfg(feature = "failpoints")]
        if let (Some(hook), Some(name)) = (HOOK.get(), &self.name) {
            hook(name);
        }
    }
}
