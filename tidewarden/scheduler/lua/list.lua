-- list: reads a page of a shard's schedules, in no order; a name may come twice over several pages.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 cursor ("0" begins)  4 names at most, about  5 bytes of each payload shown at most
-- RETURNS {next cursor ("0": the end), {name, next tick ms, 1 when stuck | 2 when paused | 0,
--         anchor ms, spec, task, payload's head, payload's length, its latest run} …}
open()
local count, head = int(4, 'count', 1, 1000), int(5, 'bytes', 0, 65536)
int(3, 'cursor', 0, 9007199254740991)
local page = redis.call('ZSCAN', key('ticks'), ARGV[3], 'COUNT', count)
local rows = {}
for i = 1, #page[2], 2 do
  rows[#rows + 1] = row_shown(page[2][i], head)
end
return finish({ page[1], rows })
