-- reasons: counts buried tasks by why they were buried; changes nothing.
-- DURABILITY none
-- GROWS   no
-- READS
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most
--         4 rank to begin at
--         5 only those buried so many ms ago or earlier (none: 0)
-- RETURNS {a list of {reason, tasks, ms of the first, ms of the last, id of the last}; the rank
--         behind them | -1: there are no more}
open()
local most, from = int(3, 'tasks', 1, 1000), int(4, 'rank', 0, NEVER)
local ids = redis.call('ZRANGE', key('buried'), from, from + most - 1, 'WITHSCORES')
local rows, places, till = {}, {}, now - (ARGV[5] and int(5, 'age', 0, NEVER) or 0)
for i = 1, #ids, 2 do
  if tonumber(ids[i + 1]) > till then return finish({ rows, -1 }) end
  local r, unreadable = tries_get(ids[i])
  local reason = r and r.reason or unreadable and 'unreadable' or ''
  local row = rows[places[reason]]
  if not row then
    row = { reason, 0, tonumber(ids[i + 1]) }
    rows[#rows + 1] = row
    places[reason] = #rows
  end
  row[2], row[4], row[5] = row[2] + 1, tonumber(ids[i + 1]), ids[i]
end
return finish({ rows, #ids == 2 * most and from + most or -1 })
