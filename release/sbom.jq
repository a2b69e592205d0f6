# The software bill of materials of one tarball and its package, in CycloneDX 1.5.
# Input: the output of `cargo metadata` for the target. Variables:
#   $linked   [{PROGRAM: ["NAME VERSION", ..]}]: the crates that are linked into each program
#   $sums     {"NAME VERSION": SHA-256}: the checksums of Cargo.lock
#   $ferrule, $daemon, $nic, $node (SHA-256 of the programs), $version, $target, $rust (the version of rustc), $time (ISO 8601)
def key: "\(.name) \(.version)";
def ref: if .source then "pkg:cargo/\(.name)@\(.version)" else "\(.name)@\(.version)" end;
# SPDX has no "/" between licences, which old manifests have.
def licences: if .license then [{expression: (.license | gsub("(?<a>[^ ])/(?<b>[^ ])"; "\(.a) OR \(.b)"))}] else [] end;
def sha256: [{alg: "SHA-256", content: .}];
def program(hash): {type: "application", "bom-ref": "program:\(.)", name: ., $version, hashes: (hash | sha256)};

$linked[0] as $linked
| ([$linked[][]] | unique) as $keys
| [.packages[] | select(IN(key; $keys[]))] as $packages
| ($packages | map({key: .id, value: ref}) | from_entries) as $refs
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: {
        timestamp: $time,
        component: {
            type: "application", "bom-ref": "ferrule", name: "ferrule", version: $version,
            licenses: [{expression: "Apache-2.0"}],
            properties: [{name: "ferrule:target", value: $target}],
            components: [("ferrule" | program($ferrule)), ("ferrule-dhcp" | program($daemon)), ("ferrule-nic" | program($nic)),
                ("ferrule-node" | program($node))]
        }
    },
    components: (
        [$packages[] | . as $package | {
            type: "library", "bom-ref": ref, name, version, licenses: licences,
            properties: [$linked | to_entries[] | select(any(.value[]; . == ($package | key)))
                | {name: "ferrule:program", value: .key}]
        }
        + (if .source then {purl: ref} else {} end)
        + (if $sums[key] then {hashes: ($sums[key] | sha256)} else {} end)
        + (if .repository then {externalReferences: [{type: "vcs", url: .repository}]} else {} end)]
        # Parts of the Rust toolchain that are linked into every program; no crate names them.
        + [{type: "library", "bom-ref": "rust-std", name: "rust-std", version: $rust,
            licenses: [{expression: "MIT OR Apache-2.0"}],
            externalReferences: [{type: "vcs", url: "https://github.com/rust-lang/rust"}]}]
        + (if $target | endswith("-musl") then
            [{type: "library", "bom-ref": "musl", name: "musl", licenses: [{expression: "MIT"}],
              externalReferences: [{type: "website", url: "https://musl.libc.org"}]}]
           else [] end)
        | sort_by(."bom-ref")),
    dependencies: (
        [{ref: "ferrule", dependsOn: ["program:ferrule", "program:ferrule-dhcp", "program:ferrule-nic"]},
         {ref: "program:ferrule", dependsOn: ["ferrule@\($version)"]},
         {ref: "program:ferrule-dhcp", dependsOn: ["ferrule-dhcpd@\($version)"]},
         {ref: "program:ferrule-nic", dependsOn: ["ferrule-nic@\($version)"]}]
        + [.resolve.nodes[] | select($refs[.id])
            | {ref: $refs[.id],
               dependsOn: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | $refs[.pkg] // empty] | unique}]
        | sort_by(.ref))
}
