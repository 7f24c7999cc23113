-- ARGV: expected_etag ('' for any), tombstone_ms, until_ms
-- The tombstone tells a live owner that this was a deletion, not a loss.
local too_late = late(ARGV[3])
if too_late then return too_late end
local stored = read('epoch', 'deleted', 'etag')
if absent(stored[1], stored[2]) then return not_found(stored[2]) end
if ARGV[1] ~= '' and ARGV[1] ~= stored[3] then return {'ETAG_MISMATCH'} end
bury(int(next_epoch(stored[1], now_ms())), ARGV[2])
return {'OK'}
