//! Files of text: ids, titles and judgements, and what is made printable of them.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use maxsim_cli::judging::ids::{Ids, Side};
use maxsim_cli::judging::qrels::Qrels;
use maxsim_cli::texts::{Keep, Texts};
use maxsim_fuzz::{Folder, Limited, within};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Items that the files are about.
const N_ITEMS: usize = 5;

thread_local! {
    static FOLDER: OnceCell<Folder> = const { OnceCell::new() };
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(Folder::new);
        let path = folder.write("text", bytes);
        within(bytes.len(), || {
            let sides = [Side::Queries, Side::Documents];
            let [queries, documents] = sides.map(|side| Ids::numbers(side, N_ITEMS));
            match choice % 4 {
                0 => drop(Ids::open(&path, Side::Documents, N_ITEMS)),
                1 => drop(Texts::open(&path, &documents, Keep::Whole)),
                2 => drop(Texts::open(&path, &documents, Keep::Beginning)),
                _ => drop(Qrels::open(&path, None, &queries, &documents)),
            }
        });
    });
});
