use candle_core::{DType, Device, Tensor};

use super::gather_rows;
use crate::ops::support::testing::{Random, assert_gradients, values};

fn rows(indices: &[u32]) -> Tensor {
    Tensor::new(indices, &Device::Cpu).unwrap()
}

/// The tables joined, row by row.
fn twin(tables: &[Vec<f64>], width: usize, indices: &[u32]) -> Vec<f64> {
    let joined = tables.concat();
    indices.iter().flat_map(|row| joined[*row as usize * width..][..width].to_vec()).collect()
}

#[test]
fn rows_of_all_tables_are_picked() {
    let mut random = Random::new(1);
    let tables = [random.tensor(&[2, 3, 2, 6]), random.tensor(&[0, 3]), random.tensor(&[2, 1, 3])];
    let tables: Vec<&Tensor> = tables.iter().collect();
    let indices = [25, 0, 24, 23, 7];
    let found = gather_rows(&tables, 3, &rows(&indices)).unwrap();
    assert_eq!(found.dims(), [5, 3]);
    let as_f64 = |table: &&Tensor| values(table).iter().map(|v| f64::from(*v)).collect();
    let expected = twin(&tables.iter().map(as_f64).collect::<Vec<Vec<f64>>>(), 3, &indices);
    let found: Vec<f64> = values(&found).iter().map(|v| f64::from(*v)).collect();
    assert_eq!(found, expected);
    assert_eq!(gather_rows(&tables, 3, &rows(&[])).unwrap().dims(), [0, 3]);
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(2);
    let tables = [random.tensor(&[1, 2, 2, 4]), random.tensor(&[3, 4])];
    // One row twice.
    let indices = [6, 1, 4, 1];
    assert_gradients(
        &tables,
        0.5,
        |tables| gather_rows(&[&tables[0], &tables[1]], 4, &rows(&indices)).unwrap(),
        |tables| twin(tables, 4, &indices),
    );
}

#[test]
fn wrong_arguments_are_named() {
    let table = Tensor::zeros((4, 3), DType::F32, &Device::Cpu).unwrap();
    let message = |width, indices: &[u32]| {
        gather_rows(&[&table], width, &rows(indices)).unwrap_err().to_string()
    };
    assert!(message(3, &[1, 4]).contains("below 4"), "{}", message(3, &[1, 4]));
    assert!(message(5, &[0]).contains("multiple of 5"), "{}", message(5, &[0]));
    assert!(message(0, &[0]).contains("`tables`"), "{}", message(0, &[0]));
}
