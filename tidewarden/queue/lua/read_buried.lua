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
-- RETURNS {tasks as {id, priority, due, deadline, lease_ms, attempts_max, backoff_ms, payload, lane
--         ("": none), trace context (likewise)}, strays as {id}; the rank behind them | -1: there
--         are no more}
open()
local most, bytes, from, till =
  int(3, 'tasks', 1, 1000),
  int(4, 'bytes', 0, NEVER),
  int(5, 'rank', 0, NEVER),
  int(7, 'till', 0, NEVER)
if till == 0 then till = now - int(8, 'age', 0, NEVER) end
local ids, seen, more = buried_page(from, most, ARGV[6], till)
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
    return finish({ tasks, redis.call('ZRANK', key('buried'), ids[i]) + 1 })
  end
end
return finish({ tasks, more and from + seen or -1 })
