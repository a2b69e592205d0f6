//! The program `ferrule-dhcp`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferrule_dhcpd::main()
}
