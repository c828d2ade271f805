use candle_core::{DType, Device};

use super::{HostArray, upload_arrays};

#[test]
fn arrays_keep_their_order_and_type() {
    let arrays = [
        HostArray::U8(&[1, 2, 3]),
        HostArray::F32(&[0.5, -0.0]),
        HostArray::U32(&[]),
        HostArray::U32(&[u32::MAX]),
    ];
    let tensors = upload_arrays(&arrays, &Device::Cpu).unwrap();
    assert_eq!(tensors[0].to_vec1::<u8>().unwrap(), [1, 2, 3]);
    assert_eq!(tensors[1].to_vec1::<f32>().unwrap(), [0.5, -0.0]);
    assert_eq!((tensors[2].dims(), tensors[2].dtype()), (&[0][..], DType::U32));
    assert_eq!(tensors[3].to_vec1::<u32>().unwrap(), [u32::MAX]);
}
