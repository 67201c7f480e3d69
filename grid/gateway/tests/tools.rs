//! The gateway as other people's tools see it: litmus (the WebDAV conformance suite), rclone, davix.

mod common;

use std::fs;

use common::grid::{bytes, put};
use common::{Bed, Wanted, run, tool, tree};

/// What litmus finds wrong, and why that stays: test and reason.
const LITMUS_FAILS: [(&str, &str); 0] = [];

#[test]
fn litmus_finds_what_is_listed_and_nothing_else() {
    let bed = Bed::start(
        1,
        Wanted {
            guest: true,
            ..Wanted::default()
        },
    );
    let mut litmus = tool("litmus");
    // It takes a user and a password of at most 255 characters, which a token is not: so as guest.
    litmus
        .current_dir(bed.grid.dir.path())
        .args(["-k", &bed.url("/")]);
    let output = litmus
        .output()
        .expect("litmus runs; `scripts/deps test` installs it");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for suite in ["basic", "copymove", "props", "locks", "http"] {
        assert!(said.contains(&format!("running `{suite}'")), "{suite}: {said}");
    }
    // ` 7. put_no_parent......... FAIL (...)`: the name stands before the dots.
    let failed = said
        .lines()
        .filter(|line| line.contains(" FAIL"))
        .filter_map(|line| line.split('.').nth(1))
        .map(str::trim)
        .collect::<Vec<_>>();
    let listed = LITMUS_FAILS.map(|(name, _)| name);
    assert_eq!(failed, listed, "{said}");
    assert!(said.matches(" pass").count() > 60, "{said}");
    println!("{said}");
}

#[test]
fn rclone_copies_syncs_and_checks_both_ways() {
    let bed = Bed::start(1, Wanted::default());
    let local = bed.path("tree");
    fs::create_dir_all(local.join("a/b c")).expect("made");
    for (n, name) in ["one", "a/two", "a/b c/three ü", "a/b c/empty"]
        .into_iter()
        .enumerate()
    {
        fs::write(local.join(name), bytes(n * 700_000 % 2_000_000, n as u64)).expect("written");
    }
    let config = bed.file("rclone.conf", b"");
    let rclone = |args: &[&str]| {
        let mut command = tool("rclone");
        command.args(args).arg("--ca-cert").arg(bed.gateway.certificate());
        command.env("RCLONE_CONFIG", &config);
        command.env("RCLONE_CONFIG_GRID_TYPE", "webdav");
        command.env("RCLONE_CONFIG_GRID_URL", bed.url("/"));
        command.env("RCLONE_CONFIG_GRID_VENDOR", "other");
        command.env("RCLONE_CONFIG_GRID_BEARER_TOKEN", bed.grid.admin_ticket().token());
        run(&mut command)
    };
    let local_text = local.display().to_string();
    rclone(&["copy", &local_text, "grid:up"]);
    rclone(&["check", "--download", &local_text, "grid:up"]);
    // What is gone here goes there, what is new comes.
    fs::remove_file(local.join("one")).expect("removed");
    fs::write(local.join("a/two"), b"changed").expect("written");
    fs::write(local.join("new"), b"new").expect("written");
    rclone(&["sync", &local_text, "grid:up"]);
    rclone(&["check", "--download", &local_text, "grid:up"]);
    let back = bed.path("back");
    let back_text = back.display().to_string();
    rclone(&["copy", "grid:up", &back_text]);
    rclone(&["check", "--download", "grid:up", &back_text]);
    assert_eq!(tree(&back), tree(&local));
    fs::write(back.join("extra"), b"x").expect("written");
    rclone(&["sync", "grid:up", &back_text]);
    assert_eq!(tree(&back), tree(&local));
    rclone(&["moveto", "grid:up/new", "grid:up/newer"]);
    rclone(&["purge", "grid:up"]);
    assert_eq!(rclone(&["lsf", "grid:"]).trim(), "");
}

#[test]
fn davix_reads_writes_and_copies() {
    let there = Bed::start(1, Wanted::default());
    let here = Bed::start(
        1,
        Wanted {
            allow: &["127.0.0.0/8"],
            trust: vec![there.gateway.certificate().clone()],
            ..Wanted::default()
        },
    );
    let content = bytes(3_000_000, 5);
    let local = here.file("local", &content);
    let command = |bed: &Bed, args: &[&str]| {
        let (name, rest) = args.split_first().expect("a tool");
        let header = format!("Authorization: Bearer {}", bed.grid.admin_ticket().token());
        let mut command = tool(name);
        command.args(["-k", "-H", &header]).args(rest);
        command
    };
    let davix = |bed: &Bed, args: &[&str]| run(&mut command(bed, args));
    davix(&here, &["davix-mkdir", &here.url("/d")]);
    davix(
        &here,
        &["davix-put", &local.display().to_string(), &here.url("/d/f")],
    );
    let back = here.path("back");
    davix(
        &here,
        &["davix-get", &here.url("/d/f"), &back.display().to_string()],
    );
    assert!(fs::read(&back).expect("there") == content);
    let listing = davix(&here, &["davix-ls", "-l", &here.url("/d")]);
    assert!(listing.contains("3000000") && listing.contains("f"), "{listing}");
    // davix-mv 0.8.4 does not end with 0 after a MOVE that was answered by 201: its work counts.
    let moved = command(&here, &["davix-mv", &here.url("/d/f"), &here.url("/d/g")]).output();
    moved.expect("davix-mv runs");
    assert_eq!(
        (here.status("GET", "/d/f", &[]), here.status("GET", "/d/g", &[])),
        (404, 200)
    );
    // Third party: the gateway that is asked fetches from the other one.
    put(&there.grid.admin(), "/far", &content, 0o644).expect("put");
    let header = format!(
        "TransferHeaderAuthorization: Bearer {}",
        there.grid.admin_ticket().token()
    );
    davix(
        &here,
        &[
            "davix-cp",
            "-H",
            &header,
            "--copy-mode",
            "pull",
            &there.url("/far"),
            &here.url("/d/near"),
        ],
    );
    assert!(common::grid::read(&here.grid.admin(), "/d/near").expect("there") == content);
    davix(&here, &["davix-rm", &here.url("/d/g")]);
    assert_eq!(here.status("GET", "/d/g", &[]), 404);
}
