"""fsspec's own suite for file systems, inherited whole."""

import posixpath

import pytest
from fsspec.tests import abstract

from kuroshio import KuroshioFileSystem


class KuroshioFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, access):
        return KuroshioFileSystem(**access, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, fs):
        path = "/abstract"
        fs.makedirs(path)
        yield path
        fs.rm(path, recursive=True)

    @pytest.fixture
    def fs_join(self):
        return posixpath.join


class TestCopy(abstract.AbstractCopyTests, KuroshioFixtures):
    pass


class TestGet(abstract.AbstractGetTests, KuroshioFixtures):
    pass


class TestPut(abstract.AbstractPutTests, KuroshioFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, KuroshioFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, KuroshioFixtures):
    pass
