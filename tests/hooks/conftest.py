from tests.support.interface_fixtures import cli as cli
from tests.support.interface_fixtures import engine as engine
