-- delete: removes a schedule. Tasks that it has put already stay.
-- DURABILITY system
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 stamp ("": whatever is stored)
-- RETURNS 1 removed | 0 there was none, or one of another stamp
open()
local row = redis.call('HEXISTS', key('schedules'), ARGV[3]) == 1
if row and ARGV[4] ~= '' then row = row_get(ARGV[3]).stamp == ARGV[4] end
if not row then return finish(0) end
row_drop(ARGV[3])
note_ticks()
return finish(1)
