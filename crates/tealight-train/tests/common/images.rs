//! The settings of a tiny run with pictures.

/// Drawn pictures with every augmentation, for the tiny run.
pub(crate) const IMAGES: [&str; 6] = [
    "task={kind='images',read_out='mean',label_smoothing=0.1}",
    "task.data={kind='shapes',n_train=24,n_validation=5}",
    "task.augment={horizontal_flip=true,crop_padding=2,erasing=0.5,mixup=0.8,cutmix=1.0}",
    "task.augment.rand_augment={n=2,magnitude=9}",
    "model.patches={kind='linear',size=4}",
    "training.early_stopping.metric=loss",
];
