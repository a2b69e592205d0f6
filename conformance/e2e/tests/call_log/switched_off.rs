//! What the log costs when it is off.

use cni_lab::testing::{Trace, host_local, network_config, with_prev};
use serde_json::{Value, json};

use crate::fixture::{TRACED, node, with_env, with_log};

const VERBS: [&str; 3] = ["ADD", "CHECK", "DEL"];
/// How many system calls each verb made before there was a log. bridge's DEL makes 7 more since it removes the host's end too.
const BEFORE: [(&str, [usize; VERBS.len()]); 3] =
    [("loopback", [42, 42, 40]), ("host-local", [67, 35, 46]), ("bridge", [127, 74, 98])];
/// A call repeats a lookup if the kernel is not ready yet, which happens more on a busy machine.
const ATTEMPTS: usize = 5;

fn config(plugin: &str) -> Value {
    let keys = match plugin {
        "loopback" => json!({}),
        _ => json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}),
    };
    network_config(plugin, "1.0.0", &keys)
}

/// With neither the configuration file nor the variable, one call looks for the file, and there are not more calls than
/// before. With the variable, there is one less. The runtime's trace costs no call.
#[test]
fn system_calls() {
    for (plugin, before) in BEFORE {
        let ctx = node(plugin);
        let conf = config(plugin);
        // What the first attachment makes for all of them.
        let (first, attachment) = (ctx.pod("call-log-first"), ctx.pod("call-log-off").attachment("eth0"));
        ctx.add(&first.attachment("eth0"), &conf);
        let (mut looks, mut without) = ([usize::MAX; VERBS.len()], [usize::MAX; VERBS.len()]);
        for _ in 0..ATTEMPTS {
            for (variable, counts) in [(None, &mut looks), (Some("off"), &mut without)] {
                let traced = with_env(&ctx, &TRACED);
                let ctx = variable.map_or(traced, |value| with_log(&ctx, value));
                let count = |verb, conf: &Value| {
                    let trace = Trace::of(&ctx.node, &ctx.exec(verb, &attachment, conf), "all");
                    assert_eq!(trace.naming("\"/etc/cni/ferrule.conf\""), usize::from(variable.is_none()));
                    trace.total()
                };
                let add = count("ADD", &conf);
                // The traced ADD prints no result.
                ctx.del(&attachment, &conf);
                let conf = with_prev(&conf, &ctx.add(&attachment, &conf));
                let found = [add, count("CHECK", &conf), count("DEL", &conf)];
                counts.iter_mut().zip(found).for_each(|(least, found)| *least = found.min(*least));
            }
        }
        println!("{plugin}: {VERBS:?} make {looks:?} system calls, before {before:?}");
        assert_eq!(looks, without.map(|count| count + 1), "{plugin}");
        assert!(looks.iter().zip(before).all(|(now, before)| *now <= before), "{plugin}");
    }
}
