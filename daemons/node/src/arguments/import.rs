//! The options of `import`.

use clap::Args;
use ferrule_blocks::block::Size;
use ipnetwork::IpNetwork;

/// The options of `import`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The layer-2 domain, as in the networks of shared
    #[arg(long, value_name = "NAME")]
    pub domain: String,
    /// A subnet of the networks; may be repeated
    #[arg(long, value_name = "CIDR", required = true)]
    pub subnet: Vec<IpNetwork>,
    /// The blockSize of the networks [default: as the plugin's]
    #[arg(long, value_name = "NUMBER", value_parser = size)]
    pub block_size: Option<Size>,
    /// Only say what would be claimed
    #[arg(long)]
    pub dry_run: bool,
}

fn size(text: &str) -> Result<Size, String> {
    text.parse::<u32>().map_err(|error| error.to_string()).and_then(Size::try_from)
}
