-- show: reads one schedule of the shard as list.lua does.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 bytes of the payload shown at most
-- RETURNS {now_ms, what list.lua says of it; {}: there is none of this name}
open()
return finish({ now, row_shown(ARGV[3], int(4, 'bytes', 0, 65536)) or {} })
