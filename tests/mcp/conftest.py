from tests.support.interface_fixtures import engine as engine
from tests.support.interface_fixtures import served as served
