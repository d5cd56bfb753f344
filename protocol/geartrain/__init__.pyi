"""The public names of Geartrain and where each is written: the only list of them."""

from geartrain import agg as agg
from geartrain.declarations.calendars import calendar_day as calendar_day
from geartrain.declarations.calendars import calendar_month as calendar_month
from geartrain.declarations.calendars import calendar_week as calendar_week
from geartrain.declarations.sink import Table as Table
from geartrain.declarations.source import Source as Source
from geartrain.declarations.task import Context as Context
from geartrain.declarations.task import Task as Task
from geartrain.declarations.windows import every_records as every_records
from geartrain.declarations.windows import every_time as every_time
from geartrain.declarations.windows import global_window as global_window
from geartrain.declarations.windows import session as session
from geartrain.declarations.windows import sliding as sliding
from geartrain.declarations.windows import tumbling as tumbling
from geartrain.flow.flow import Flow as Flow
from geartrain.flow.keyed import KeyedStream as KeyedStream
from geartrain.flow.stream import SourceStream as SourceStream
from geartrain.flow.stream import Stream as Stream
from geartrain.flow.windowed import WindowedStream as WindowedStream
from geartrain.graph.graph import Graph as Graph
from geartrain.operators.deal import by_key as by_key
from geartrain.records.record import Record as Record
from geartrain.records.record import State as State
from geartrain.schema.logical import Digits as Digits
from geartrain.schema.notes import Description as Description
from geartrain.schema.notes import Unit as Unit

__version__: str
__all__: list[str]
