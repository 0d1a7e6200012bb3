"""The paper's grid as data: data sets, cells, records and sweeps."""
