use candle_core::{DType, Device, Tensor};

use super::gather_rows;
use crate::ops::support::testing::{Random, assert_gradients, values};

fn rows(indices: &[u32], images: usize) -> Tensor {
    let dims = (images, indices.len() / images);
    Tensor::from_vec(indices.to_vec(), dims, &Device::Cpu).unwrap()
}

/// The tables of each image joined, row by row.
fn twin(tables: &[Vec<f64>], width: usize, indices: &[u32], images: usize) -> Vec<f64> {
    let joined = |image: usize| -> Vec<f64> {
        let part = |table: &Vec<f64>| {
            let length = table.len() / images;
            table[image * length..][..length].to_vec()
        };
        tables.iter().flat_map(part).collect()
    };
    let lists = indices.chunks(indices.len() / images).enumerate();
    lists
        .flat_map(|(image, rows)| {
            let joined = joined(image);
            let row = move |row: &u32| joined[*row as usize * width..][..width].to_vec();
            rows.iter().flat_map(row).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn rows_of_all_tables_are_picked() {
    let mut random = Random::new(1);
    let tables =
        [random.tensor(&[2, 3, 2, 6]), random.tensor(&[2, 0, 3]), random.tensor(&[2, 1, 3])];
    let tables: Vec<&Tensor> = tables.iter().collect();
    let indices = [12, 0, 11, 7, 3, 12, 12, 5];
    let found = gather_rows(&tables, 3, &rows(&indices, 2)).unwrap();
    assert_eq!(found.dims(), [8, 3]);
    let as_f64 = |table: &&Tensor| values(table).iter().map(|v| f64::from(*v)).collect();
    let tables_f64 = tables.iter().map(as_f64).collect::<Vec<Vec<f64>>>();
    let expected = twin(&tables_f64, 3, &indices, 2);
    let found: Vec<f64> = values(&found).iter().map(|v| f64::from(*v)).collect();
    assert_eq!(found, expected);
    let one_list = gather_rows(&tables, 3, &Tensor::new(&[25u32], &Device::Cpu).unwrap()).unwrap();
    assert_eq!(values(&one_list), values(tables[2])[3..]);
    assert_eq!(gather_rows(&tables, 3, &rows(&[], 2)).unwrap().dims(), [0, 3]);
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(2);
    let tables = [random.tensor(&[2, 2, 1, 4]), random.tensor(&[2, 3, 4])];
    // One row twice.
    let indices = [4, 1, 3, 1, 0, 2, 1, 4];
    assert_gradients(
        &tables,
        0.5,
        |tables| gather_rows(&[&tables[0], &tables[1]], 4, &rows(&indices, 2)).unwrap(),
        |tables| twin(tables, 4, &indices, 2),
    );
}

#[test]
fn wrong_arguments_are_named() {
    let table = Tensor::zeros((1, 4, 3), DType::F32, &Device::Cpu).unwrap();
    let message = |width, indices: &[u32], images| {
        gather_rows(&[&table], width, &rows(indices, images)).unwrap_err().to_string()
    };
    assert!(message(3, &[1, 4], 1).contains("below 4"), "{}", message(3, &[1, 4], 1));
    assert!(message(5, &[0], 1).contains("multiple of 5"), "{}", message(5, &[0], 1));
    assert!(message(3, &[0, 0], 2).contains("2 images"), "{}", message(3, &[0, 0], 2));
    assert!(message(0, &[0], 1).contains("`tables`"), "{}", message(0, &[0], 1));
}
