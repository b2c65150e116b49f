//! Tiny GGUF files for tests.

/// Bytes of a GGUF, part by part.
#[derive(Default)]
pub(crate) struct Written {
    metadata: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

impl Written {
    pub(crate) fn value(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        let mut bytes = text(key);
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(value);
        self.metadata.push(bytes);
        self
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.value(key, 8, &text(value))
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.value(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.value(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.value(key, 7, &[value.into()])
    }

    pub(crate) fn texts<'a>(&mut self, key: &str, values: impl IntoIterator<Item = &'a str>) -> &mut Self {
        let values: Vec<Vec<u8>> = values.into_iter().map(text).collect();
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        bytes.extend(values.concat());
        self.value(key, 9, &bytes)
    }

    pub(crate) fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.value(key, 9, &bytes)
    }

    /// `dims` outermost first; the offset is the next multiple of 32.
    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, data: &[u8]) -> &mut Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        self.entry(name, dims, kind, offset);
        self.data.extend_from_slice(data);
        self
    }

    pub(crate) fn tensor_f32(&mut self, name: &str, dims: &[u64], values: &[f32]) -> &mut Self {
        self.tensor(name, dims, 0, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// An entry without data.
    pub(crate) fn entry(&mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> &mut Self {
        let mut bytes = text(name);
        bytes.extend_from_slice(&(dims.len() as u32).to_le_bytes());
        bytes.extend(dims.iter().rev().flat_map(|d| d.to_le_bytes()));
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend_from_slice(&3u32.to_le_bytes());
        bytes.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.metadata.len() as u64).to_le_bytes());
        bytes.extend(self.metadata.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend_from_slice(&self.data);
        bytes
    }
}
