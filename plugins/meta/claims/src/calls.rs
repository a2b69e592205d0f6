//! The calls of the plugins of one step, in this process if they are in this program. A device that the interface is made on is up
//! between the first and the last one.

use cni_common::plugin::{Delegate, Environment, Repair, Verb};
use cni_common::spec::{AddResult, CniError, Context as _, Failures, NetConf, SpecVersion};
use ferrule_kubelet::claims::Object;
use ferrule_kubelet::claims::Step;
use serde_json::Value;

use crate::device;

/// The plugins of one step, and the environment of their calls.
pub struct Calls<'a> {
    step: &'a Step,
    env: Environment,
}

impl<'a> Calls<'a> {
    /// With the environment of the pod's first interface. CNI_ARGS are that interface's, so the plugins get none.
    pub fn new(step: &'a Step, env: &Environment) -> Self {
        let env = Environment { ifname: step.if_name.clone(), args: String::new(), ..env.clone() };
        Calls { step, env }
    }

    /// ADD of all plugins.
    ///
    /// # Errors
    /// That of the first plugin that fails. The plugins before it have run.
    pub fn add(&self) -> Result<AddResult, CniError> {
        device::set_up(self.step, true)?;
        let mut result: Option<AddResult> = None;
        for plugin in &self.step.plugins {
            let json = result.map(|result| result.to_json(SpecVersion::NEWEST)).transpose()?;
            let made = self.call(plugin, json, |delegate| delegate.add_or_leave(SpecVersion::NEWEST));
            result = Some(made.map_err(|error| self.explain(plugin, error))?);
        }
        Ok(result.unwrap_or_default())
    }

    /// DEL of all plugins in reverse order, also after an error.
    ///
    /// # Errors
    /// All errors.
    pub fn del(&self) -> Result<(), CniError> {
        let mut failures = Failures::default();
        for plugin in self.step.plugins.iter().rev() {
            failures.keep(self.call(plugin, self.result(), |delegate| delegate.call(Verb::Del)));
        }
        failures.keep(device::set_up(self.step, false));
        failures.into_result()
    }

    /// CHECK of all plugins.
    ///
    /// # Errors
    /// That of the first plugin that fails.
    pub fn check(&self) -> Result<(), CniError> {
        device::check(self.step)?;
        let check = |plugin| self.call(plugin, self.result(), |delegate| delegate.call(Verb::Check));
        self.step.plugins.iter().try_for_each(check)
    }

    /// Repairs what CHECK of the plugins refuses.
    ///
    /// # Errors
    /// That of the first plugin that cannot repair it.
    pub fn repair(&self) -> Result<(), CniError> {
        device::set_up(self.step, true)?;
        self.step.plugins.iter().try_for_each(|plugin| {
            self.call(plugin, self.result(), |delegate| {
                let outcome = match delegate.look() {
                    Repair::Possible(why) => delegate.repair(&why),
                    other => other,
                };
                match outcome {
                    Repair::Sound | Repair::Done(_) => Ok(()),
                    Repair::Possible(why) | Repair::Failed(why) => Err(why),
                    Repair::Foreign => Err(CniError::internal("another program makes the interface")),
                }
            })
        })
    }

    /// The result of ADD; `None` if it has not succeeded.
    fn result(&self) -> Option<Value> {
        self.step.outcome.as_ref().map(|outcome| Value::Object(outcome.result.clone()))
    }

    fn call<T>(
        &self,
        plugin: &Object,
        prev_result: Option<Value>,
        work: impl FnOnce(&Delegate<'_>) -> Result<T, CniError>,
    ) -> Result<T, CniError> {
        let mut config = plugin.clone();
        config.extend(prev_result.map(|result| ("prevResult".to_owned(), result)));
        let text = serde_json::to_vec(&config).context(|| "write the configuration of a claim")?;
        let config = NetConf::parse(text)?;
        let name = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
        work(&Delegate::find(name, &self.env, &config)?)
    }

    /// The error with the claim that it belongs to.
    fn explain(&self, plugin: &Object, error: CniError) -> CniError {
        let Step { claim, if_name, device, .. } = self.step;
        let name = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
        let (namespace, claim) = (&claim.namespace, &claim.name);
        let msg =
            format!("claim {namespace}/{claim}: {name} for device {device:?} as {if_name:?}: {}", error.msg);
        CniError { msg, ..error }
    }
}
