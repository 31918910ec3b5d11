//! What is true of kernels alone. That they agree with the definitions is for the other suites to show.

use candle_core::{Device, Result, Tensor};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::definitions;
use tealight_ops::embedding::embedding;

/// Nothing waits for the device to look at labels and ids, so what is out of range gives NaN: by this it is
/// seen, too, that kernels are what computes here.
#[test]
fn what_is_out_of_range_is_not_a_number() -> Result<()> {
    let table = Tensor::new(&[[1_f32, 2.], [3., 4.]], &Device::Cpu)?;
    let wrong = Tensor::new(&[1_i64, 9], &Device::Cpu)?;
    assert!(cross_entropy(&table, &wrong, 0.)?.to_scalar::<f32>()?.is_nan());
    let rows = embedding(&table, &wrong)?.to_vec2::<f32>()?;
    assert_eq!(rows[0], [3., 4.]);
    assert!(rows[1].iter().all(|x| x.is_nan()));
    definitions::only(|| assert!(cross_entropy(&table, &wrong, 0.).is_err()));
    Ok(())
}
