//! What `ferrule repair` does with one plugin of an attachment.

use super::dispatch::{check_version, on_attachment};
use super::{AddRequest, Environment, Plugin, Verb};
use crate::spec::{CniError, NetConf};

/// The outcome of [`Delegate::look`](super::Delegate::look) and [`Delegate::repair`](super::Delegate::repair).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// CHECK agrees.
    Sound,
    /// CHECK refuses this, which the plugin may be able to make again.
    Possible(CniError),
    /// CHECK has refused this, and agrees now.
    Done(CniError),
    /// CHECK refuses this, and it cannot be made again.
    Failed(CniError),
    /// The program is another project's, or of another build.
    Foreign,
}

/// CHECK.
pub(super) fn look(plugin: &Plugin, env: &Environment, config: &NetConf) -> Repair {
    attempt(env, plugin, config, |call| match ((plugin.check)(call), plugin.repair) {
        (Ok(()), _) => Repair::Sound,
        (Err(why), Some(_)) => Repair::Possible(why),
        (Err(why), None) => failed(&why, &format!("{} makes nothing again", plugin.name)),
    })
}

/// Repair, then CHECK. `why` is what CHECK has refused.
pub(super) fn repair(plugin: &Plugin, env: &Environment, config: &NetConf, why: &CniError) -> Repair {
    attempt(env, plugin, config, |call| {
        let repaired = plugin.repair.map_or(Ok(()), |repair| repair(call));
        match repaired.and_then(|()| (plugin.check)(call)) {
            Ok(()) => Repair::Done(why.clone()),
            Err(because) => failed(why, &because.to_string()),
        }
    })
}

fn attempt(
    env: &Environment,
    plugin: &Plugin,
    config: &NetConf,
    work: impl FnOnce(&AddRequest<'_>) -> Repair,
) -> Repair {
    let outcome = env.validate(Verb::Check).and_then(|()| {
        let version = check_version(plugin, Verb::Check, config)?;
        on_attachment(env, config, version, |call| Ok(work(call)))
    });
    outcome.unwrap_or_else(Repair::Failed)
}

fn failed(why: &CniError, because: &str) -> Repair {
    Repair::Failed(CniError::internal(format!("{why}; cannot be made again: {because}")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::*;
    use crate::spec::SpecVersion;

    /// The missing object: CHECK refuses 1 to 3, repair makes 1 again, and says so of 2 too.
    static MISSING: AtomicU8 = AtomicU8::new(0);

    const PLUGIN: Plugin = Plugin {
        check: |_| match MISSING.load(Relaxed) {
            0 => Ok(()),
            number => Err(CniError::internal(format!("{number} is missing"))),
        },
        repair: Some(|_| match MISSING.load(Relaxed) {
            1 => {
                MISSING.store(0, Relaxed);
                Ok(())
            }
            2 => Ok(()),
            _ => Err(CniError::internal("the port is taken")),
        }),
        spec_versions: &[SpecVersion::V0_3_1, SpecVersion::V1_0_0],
        ..Plugin::new("test", |_| Err(CniError::internal("no")), |_| Ok(()))
    };
    const WITHOUT: Plugin = Plugin { repair: None, ..PLUGIN };

    #[test]
    fn check_decides_before_and_after() {
        let env = Environment {
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
            netns: "/nowhere".to_owned(),
            ..Environment::default()
        };
        let config = NetConf::parse(br#"{"cniVersion": "1.0.0", "name": "net"}"#.to_vec()).unwrap();
        let call = |plugin: &Plugin, missing: u8| {
            MISSING.store(missing, Relaxed);
            let looked = look(plugin, &env, &config);
            assert_eq!(MISSING.load(Relaxed), missing);
            match looked {
                Repair::Possible(why) => repair(plugin, &env, &config, &why),
                other => other,
            }
        };
        let error = |text: &str| CniError::internal(text);
        assert_eq!(call(&PLUGIN, 0), Repair::Sound);
        assert_eq!(call(&PLUGIN, 1), Repair::Done(error("1 is missing")));
        for (plugin, missing, why) in [
            (&PLUGIN, 2, "2 is missing; cannot be made again: 2 is missing"),
            (&PLUGIN, 3, "3 is missing; cannot be made again: the port is taken"),
            (&WITHOUT, 1, "1 is missing; cannot be made again: test makes nothing again"),
        ] {
            assert_eq!(call(plugin, missing), Repair::Failed(error(why)));
        }
        let old = NetConf::parse(br#"{"cniVersion": "0.3.1", "name": "net"}"#.to_vec()).unwrap();
        let nameless = Environment { container_id: String::new(), ..env.clone() };
        assert!(matches!(look(&PLUGIN, &env, &old), Repair::Failed(_)), "without CHECK");
        assert!(matches!(look(&PLUGIN, &nameless, &old), Repair::Failed(_)));
    }
}
