//! The conformance suite, run for every back end: each case of `suite` is a test of SQLite and one of
//! PostgreSQL (a real server, see `suite::server`).

mod suite;

use suite::bed::{Bed, PostgresBed, SqliteBed};

macro_rules! back_ends {
    ($($file:ident: $($case:ident)*;)*) => {
        mod sqlite {
            $(mod $file { $(
                #[test]
                fn $case() {
                    let bed = crate::SqliteBed::new();
                    crate::suite::$file::$case(&bed);
                    crate::Bed::finish(&bed);
                }
            )* })*
        }
        mod postgres {
            $(mod $file { $(
                #[test]
                fn $case() {
                    let bed = crate::PostgresBed::new();
                    crate::suite::$file::$case(&bed);
                    crate::Bed::finish(&bed);
                }
            )* })*
        }
    };
}

back_ends! {
    names: make_and_look_up create_opens_or_refuses dots_slashes_and_limits symbolic_links hard_links
        directories_are_removed_when_empty listing_in_pages paths_of_inodes fifos_and_sockets;
    renames: files directories below_itself no_replace_and_exchange sticky_and_permissions;
    access: search_read_write a_number_gives_no_right owner_group_other_and_acl default_acl_and_set_gid who_changes_what
        times extended_attributes callers_are_checked;
    contents: put_is_one_step a_commit_replaces_and_readers_keep drafts_are_checked staged_and_kept_fragments
        unlinked_while_open another_service_holds abandoned_drafts reserved_numbers_last;
    quotas: of_users_and_groups of_directories moves_between_quotas totals;
    replicas: short_and_surplus per_site the_last_one_stays a_lost_node a_drained_node adopted
        nodes_and_sites routes_and_leases;
    restores: a_file_with_its_numbers numbers_are_raised a_dump_is_all_that_only_the_catalog_knows;
    jobs: claimed_by_priority cancelled_and_taken_over of_users a_clock_that_jumped_holds_nothing_for_long;
    presence: records_change_with_each_hearing a_job_is_for_the_service_that_hears_its_node one_has_the_turn;
    together: many_threads_make_names moves_make_no_loop the_flush_comes_first two_services_on_one_catalog
        decisions_rest_on_what_is_locked a_queue_of_changes;
    model: random_operations_match_the_model;
}
