-- read_buried: reads buried tasks as they would be put elsewhere; changes nothing.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most
--         4 bytes after which no more are read
--         5 rank to begin at
--         6 prefix of the reason ("": any)
--         7 only those buried by then (unix ms; 0: by now)
--         8 less so many ms
--         9 1: the prefix is the whole reason
--         10… ids, and no others
-- RETURNS {tasks as {id, priority, due, deadline, lease_ms, attempts_max, backoff_ms, payload, lane
--         ("": none), trace context (likewise)}, strays as {id}; the rank behind them, of ids how
--         many were looked at | -1: there are no more; unix ms of this look}
open()
local most, bytes, from, till =
  int(3, 'tasks', 1, 1000),
  int(4, 'bytes', 0, NEVER),
  int(5, 'rank', 0, NEVER),
  int(7, 'till', 0, NEVER)
if till == 0 then till = now - int(8, 'age', 0, NEVER) end
local named, ids, places, behind = #ARGV > 9, {}, {}, -1
if named then
  for i = 10, #ARGV do
    local buried = redis.call('ZSCORE', key('buried'), ARGV[i])
    if buried and tonumber(buried) <= till then
      ids[#ids + 1], places[#places + 1] = ARGV[i], i - 9
    end
  end
else
  local page, seen, more = buried_page(from, most, ARGV[6], till, ARGV[9] == '1')
  ids = page
  if more then behind = from + seen end
end
local tasks, size = {}, 0
for i = 1, #ids do
  local t = task_get(ids[i])
  tasks[i] = t
      and {
        ids[i],
        t.priority,
        t.due,
        t.deadline,
        t.lease_ms,
        t.attempts_max,
        t.backoff_ms,
        t.payload,
        t.lane or '',
        t.trace or '',
      }
    or { ids[i] }
  size = size + (t and #t.payload or 0)
  if size >= bytes and i < #ids then
    local place = named and places[i] or redis.call('ZRANK', key('buried'), ids[i]) + 1
    return finish({ tasks, place, now })
  end
end
return finish({ tasks, behind, now })
