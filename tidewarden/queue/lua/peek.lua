-- peek: reads tasks by id, or a page of those in one state; changes nothing.
-- DURABILITY none
-- GROWS   no
-- READS
-- KEYS    1 the shard  2 the view
-- ARGV    3 'id' | 'ids' | state (delayed, ready, leased, buried, waiting)
--         4 id | bytes of payloads after which no more are read | tasks at most
--         5 cursor ("": from the start)
--         6 1: without payloads; 2: ids alone, none of whose records is read (none: 0)
--         7… with 'ids': these
-- RETURNS {tasks, cursor ("": no more; with 'ids' how many of them were looked at)}; a task is {id,
--         state, payload, priority, due, deadline, attempts, losses, lease, lease_end | at, holder,
--         reason, lease_ms, attempts_max, backoff_ms, expires (0: never), lane ("": none), trace
--         context (likewise), history} where history is a list of {ms, how, attempt, reason}, the
--         oldest first; of ids alone {id, the cursor behind it}
open()
-- Bytes of payloads in one page, and the task with which it goes past them.
local tasks, room, bare, alone = {}, 16777216, ARGV[6] == '1', ARGV[6] == '2'
local function show(id, state, score)
  local t, r, unreadable = both_get(id)
  if not t and not unreadable then return end
  r = r or fresh_tries()
  if unreadable then -- what else it is cannot be said
    t = {
      payload = '',
      priority = 0,
      due = 0,
      deadline = 0,
      lease_ms = 0,
      attempts_max = 0,
      backoff_ms = 0,
      expires = 0,
    }
    r.reason = 'unreadable'
    state = state
      or lease_end_of(id) and 'leased'
      or redis.call('ZSCORE', key('buried'), id) and 'buried'
      or 'ready'
  end
  if not state then
    state = locate(id, t, r)
    local index = state == 'leased' and 'leased:' .. index_of(r.holder)
      or state == 'ready' and 'ready:' .. t.priority
      or state
    if state == 'delayed' then
      score = delayed_at(t, r)
    else
      score = state ~= 'waiting' and redis.call('ZSCORE', key(index), id)
    end
  end
  room = room - #t.payload -- they are read, whether they are shown or not
  if bare then t.payload = '' end
  local history = history_of(r)
  for i = 1, #history do
    history[i][5] = nil
  end
  tasks[#tasks + 1] = {
    id,
    state,
    t.payload,
    t.priority,
    t.due,
    t.deadline,
    r.attempts,
    r.losses,
    r.holder ~= '' and r.lease or 0,
    tonumber(score or 0) + (state == 'leased' and S.lag or 0),
    r.holder,
    r.reason,
    t.lease_ms,
    t.attempts_max > 0 and t.attempts_max or S.attempts,
    t.backoff_ms > 0 and t.backoff_ms or S.backoff_ms,
    t.expires,
    t.lane or '',
    t.trace or '',
    history,
  }
end
if ARGV[3] == 'id' then
  show(ARGV[4])
  return finish({ tasks, '' })
elseif ARGV[3] == 'ids' then
  if #ARGV > 1006 then refuse('BADARG a look is at 1000 tasks at most') end
  room = int(4, 'bytes', 0, NEVER)
  local looked = 0
  while 6 + looked < #ARGV and room >= 0 do
    looked = looked + 1
    show(ARGV[6 + looked])
  end
  return finish({ tasks, text(looked) })
end

-- Equal scores stand in the order of their bytes.
local function less(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The rank behind the place where a task stood, also when it has gone.
local function rank_behind(index, score, id) -- the score as it stands there
  local rank = redis.call('ZRANK', key(index), id)
  if rank then return rank + 1 end
  local low, high =
    redis.call('ZCOUNT', key(index), '-inf', '(' .. score),
    redis.call('ZCOUNT', key(index), '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if less(redis.call('ZRANGE', key(index), middle, middle)[1], id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Whether pages show index `a` before `b`: priorities by number, holders by name.
local function before(a, b)
  local x, y =
    tonumber(string.match(a, '^ready:(%d+)$')), tonumber(string.match(b, '^ready:(%d+)$'))
  if x and y then return x < y end
  return a < b
end

local state, most, cursor = ARGV[3], int(4, 'count', 1, 1000), ARGV[5]
-- Lane by lane, each in its order; here a cursor is the last entry, in hexadecimal.
if state == 'waiting' then
  if string.match(cursor, '[^%x]') then
    refuse('BADARG the cursor is not one of the state waiting: ' .. cursor)
  end
  local last = string.gsub(
    cursor,
    '%x%x',
    function(pair) return string.char(tonumber(pair, 16)) end
  )
  local page = redis.call(
    'ZRANGEBYLEX',
    key(state),
    cursor == '' and '-' or '(' .. last,
    '+',
    'LIMIT',
    0,
    most
  )
  local function place(entry)
    return (string.gsub(entry, '.', function(c) return string.format('%02x', string.byte(c)) end))
  end
  local shown = 0
  while shown < #page and room > 0 do
    shown = shown + 1
    local id = select(2, laned().parse(page[shown], 13))
    if alone then
      tasks[shown] = { id, place(page[shown]) }
    else
      show(id, state, 0)
    end
  end
  local full = shown > 0 and (shown == most or shown < #page)
  return finish({ tasks, full and place(page[shown]) or '' })
end
local indexes = indexes_of(state)
table.sort(indexes, before)
-- A cursor is `index score id`: it goes on behind the place where that task stood, also when the
-- task or the whole index has gone.
local at_index, at_score, at_id = string.match(cursor, '^(%S+) ([%d.]+) (.+)$')
local stood = tonumber(at_score) -- not every row of digits and points is a number
if cursor ~= '' and (not stood or stood > 2 ^ 53 or string.match(at_index, '^%l+') ~= state) then
  refuse('BADARG the cursor is not one of the state ' .. state .. ': ' .. cursor)
end
-- Its pieces from the one on in which the cursor's task stood, whatever that was called.
if state == 'delayed' then
  indexes = pieces_from(stood or 0, most)
  for i = 1, #indexes do
    indexes[i] = string.sub(indexes[i], #P + 2)
  end
  if at_index then at_index = indexes[1] end
end
for i = 1, #indexes do
  local index, from = indexes[i], 0
  local base = state == 'delayed' and base_of(key(index)) or 0
  if index == at_index then
    from = rank_behind(index, string.format('%.17g', stood - base), at_id)
  end
  if state == 'delayed' or not at_index or not before(index, at_index) then
    local page = redis.call('ZRANGE', key(index), from, from + most - #tasks - 1, 'WITHSCORES')
    local function place(j)
      return index .. ' ' .. string.format('%.17g', page[j + 1] + base) .. ' ' .. page[j]
    end
    for j = 1, #page, 2 do
      if alone then
        tasks[#tasks + 1] = { page[j], place(j) }
      else
        show(page[j], state, page[j + 1] + base)
      end
      if #tasks == most or room <= 0 then return finish({ tasks, place(j) }) end
    end
  end
end
return finish({ tasks, '' })
