//! The failure matrix of the documentation names tests that exist.

use std::{collections::BTreeSet, fs, path::Path};

fn sources(directory: &Path, text: &mut String) {
    let entries = fs::read_dir(directory).expect("read the tests' directory");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("read a test"));
        }
    }
}

/// The tests in the column `test` of each row of the matrix.
fn tests(matrix: &str) -> Vec<Vec<&str>> {
    let mut column = 0;
    let mut rows = Vec::new();
    for line in matrix.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let Some(found) = cells.iter().position(|cell| *cell == "test") {
            column = found;
            continue;
        }
        let names = cells[column].split('`').skip(1).step_by(2);
        // `.._mariadb` is short for the same name with another ending.
        rows.push(names.filter(|name| !name.starts_with("..")).collect());
    }
    rows
}

#[test]
fn every_test_of_the_matrix_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let matrix = fs::read_to_string(root.join("../docs/failure-matrix.md"));
    let matrix = matrix.expect("read the matrix");
    let mut code = String::new();
    sources(&root.join("tests"), &mut code);
    sources(&root.join("src"), &mut code);
    let rows = tests(&matrix);
    assert!(rows.iter().all(|names| !names.is_empty()), "{rows:?}");
    let names: BTreeSet<&str> = rows.into_iter().flatten().collect();
    assert!(names.len() > 60, "{names:?}");
    let exists = |name: &&str| {
        code.contains(&format!("fn {name}")) || code.contains(&format!("mod {name} "))
    };
    let missing: Vec<&str> = names.into_iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "no such test: {missing:?}");
}
