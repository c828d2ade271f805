//! Normalisation of cells by its definition, in f64.

pub(super) fn l2_normalize(input: &[f64], weight: &[f64]) -> Vec<f64> {
    let of_cell = |cell: &[f64]| -> Vec<f64> {
        let length = cell.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        cell.iter().zip(weight).map(|(x, weight)| weight * x / length).collect()
    };
    input.chunks_exact(weight.len()).flat_map(of_cell).collect()
}
